"""Use instructor in every mode that a server of the OpenAI API can serve."""

import os
from collections.abc import Iterable

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


for mode in (
    instructor.Mode.TOOLS,
    instructor.Mode.TOOLS_STRICT,
    instructor.Mode.PARALLEL_TOOLS,
    instructor.Mode.JSON,
    instructor.Mode.JSON_SCHEMA,
    instructor.Mode.JSON_O1,
    instructor.Mode.MD_JSON,
    instructor.Mode.FUNCTIONS,
    instructor.Mode.RESPONSES_TOOLS,
):
    client = instructor.from_openai(
        OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0), mode=mode
    )
    wanted = Person
    if mode is instructor.Mode.PARALLEL_TOOLS:
        wanted = Iterable[Person]
    found = client.chat.completions.create(
        model="digits",
        response_model=wanted,
        max_retries=1,
        messages=[{"role": "user", "content": "Who?"}],
    )
    found = found if isinstance(found, Person) else next(iter(found))
    assert found.model_dump() == {"name": "a", "age": 7}, mode

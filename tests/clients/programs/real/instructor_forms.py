"""Use instructor in the modes that force a real model, however small, into the form."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=99)


for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(
        OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0), mode=mode
    )
    found = client.chat.completions.create(
        model="digits",
        response_model=Person,
        max_retries=1,
        max_tokens=80,
        temperature=0,
        messages=[{"role": "user", "content": "Ada Lovelace is 36 years old."}],
    )
    assert found.name.startswith("Ada"), (mode, found)
    assert found.age == 36, (mode, found)

"""Use LangChain: tools, structured output in each method, streams with usage."""

import os

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""

    name: str
    age: int


model = ChatOpenAI(
    model="digits", base_url=os.environ["BASE_URL"], api_key="none", max_retries=0, max_tokens=3
)
assert model.invoke("5").content == " 6 7 8"
pieces = list(model.stream("5"))
assert "".join(piece.content for piece in pieces) == " 6 7 8"
calls = model.bind_tools([Person], tool_choice="any").invoke([HumanMessage("Who?")]).tool_calls
assert calls[0]["args"] == {"name": "a", "age": 7}
streamed = None
for piece in model.bind_tools([Person]).stream("Who?"):
    streamed = piece if streamed is None else streamed + piece
assert streamed.tool_calls[0]["args"] == {"name": "a", "age": 7}
for method in ("function_calling", "json_schema", "json_mode"):
    found = model.with_structured_output(Person, method=method).invoke("Who, as JSON?")
    assert found == Person(name="a", age=7), method

"""Use litellm: whole, streamed, with tools and with a schema."""

import json
import os

import litellm

litellm.telemetry = False
how = {
    "model": "openai/digits",
    "api_base": os.environ["BASE_URL"],
    "api_key": "none",
    "num_retries": 0,
    "messages": [{"role": "user", "content": "5"}],
}
found = litellm.completion(**how, max_tokens=3)
assert found.choices[0].message.content == " 6 7 8"
pieces = list(litellm.completion(**how, max_tokens=3, stream=True))
assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == " 6 7 8"
tool = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
found = litellm.completion(**how, tools=[{"type": "function", "function": tool}])
assert found.choices[0].message.tool_calls[0].function.name == "weather"
schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
found = litellm.completion(**how, response_format=wanted)
assert json.loads(found.choices[0].message.content) == {"age": 7}

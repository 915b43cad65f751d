"""Use OpenAI's client: texts, streams, tools, schemas."""

import json
import os

from openai import OpenAI

client = OpenAI(base_url=os.environ["BASE_URL"], api_key="none", max_retries=0)
talk = [{"role": "user", "content": "Weather in Paris?"}]
tool = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
schema = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "schema": {"type": "object", "properties": {"age": {"type": "integer"}}},
    },
}
found = client.chat.completions.create(model="digits", messages=talk, tools=[tool])
call = found.choices[0].message.tool_calls[0]
assert json.loads(call.function.arguments) == {"city": "a"}
assert found.usage.cinquefoil["energy_j"] > 0
pieces = list(
    client.chat.completions.create(
        model="digits",
        messages=talk,
        tools=[tool],
        stream=True,
        stream_options={"include_usage": True},
    )
)
calls = [each for piece in pieces for c in piece.choices for each in c.delta.tool_calls or ()]
assert calls[0].function.name == "weather"
assert pieces[-1].usage.cinquefoil["energy_j"] > 0
result = {"role": "tool", "tool_call_id": call.id, "content": "Sunny"}
made = found.choices[0].message.model_dump(exclude_none=True)
found = client.chat.completions.create(
    model="digits", messages=[*talk, made, result], tools=[tool], max_tokens=2
)
assert found.choices[0].message.content == " 1 2"
found = client.chat.completions.create(model="digits", messages=talk, response_format=schema)
assert json.loads(found.choices[0].message.content) == {"age": 7}
assert [model.id for model in client.models.list().data] == ["digits"]

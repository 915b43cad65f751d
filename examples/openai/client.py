"""Tools, a JSON schema, reasoning and log probabilities through OpenAI's client, unmodified.

pip install openai
cinquefoil up --config examples/openai/cinquefoil.yaml
python examples/openai/client.py
"""

import json
import os
from typing import Any

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("BASE_URL", "http://localhost:8676/v1"), api_key="none")
(model, *adapters) = [each.id for each in client.models.list()]


def request(text: str, **how: Any) -> Any:
    """Return the answer to one message."""
    messages = [{"role": "user", "content": text}]
    usual: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "temperature": 0,
        "max_tokens": 60,
    }
    create: Any = client.chat.completions.create
    return create(**usual | how)


city = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}}
tool = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {**city, "required": ["city"]}},
}
found = request("What is the weather in Paris?", tools=[tool], tool_choice="required")
call = found.choices[0].message.tool_calls[0].function
print("tool:", call.name, json.loads(call.arguments))
receipt = found.usage.cinquefoil
print("receipt:", receipt["energy_j"], "J,", receipt["carbon_gco2e"], "gCO2e")

parts = request("Weather in Rome?", tools=[tool], tool_choice="required", stream=True)
deltas = [call for part in parts for c in part.choices for call in c.delta.tool_calls or ()]
print("streamed:", "".join(each.function.arguments or "" for each in deltas))

person = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": person}}
found = request("Ada Lovelace is 36 years old.", response_format=wanted)
print("schema:", json.loads(found.choices[0].message.content))

thinking = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget_tokens": 12}
message = request("Why is the sky blue?", extra_body=thinking).choices[0].message
print("reasoning:", message.reasoning_content.strip())

found = request("Yes or no?", logprobs=True, top_logprobs=2, max_tokens=1)
print("likeliest:", [each.token for each in found.choices[0].logprobs.content[0].top_logprobs])

for adapter in adapters:
    print(f"{adapter}:", request("Why?", model=adapter, max_tokens=8).choices[0].message.content)

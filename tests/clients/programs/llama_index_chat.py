"""Use LlamaIndex: chat, streams, function calls."""

import os

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

model = OpenAILike(
    model="digits",
    api_base=os.environ["BASE_URL"],
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    max_tokens=3,
    max_retries=0,
)
talk = [ChatMessage(role="user", content="5")]
assert model.chat(talk).message.content == " 6 7 8"
assert list(model.stream_chat(talk))[-1].message.content == " 6 7 8"


def weather(city: str) -> str:
    """Return the weather of a city."""
    return city


tool = FunctionTool.from_defaults(fn=weather)
found = model.chat_with_tools([tool], user_msg="Weather in Paris?")
(call,) = model.get_tool_calls_from_response(found)
assert (call.tool_name, call.tool_kwargs) == ("weather", {"city": "a"})

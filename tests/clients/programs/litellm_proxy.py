"""Use litellm's proxy in front: its own config, and OpenAI's client at it."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from socket import create_server

from openai import APIConnectionError, OpenAI

KEY = "sk-of-the-proxy"
with create_server(("127.0.0.1", 0)) as found:
    port = found.getsockname()[1]
with tempfile.TemporaryDirectory() as folder:
    config = Path(folder, "config.yaml")
    behind = {"model": "openai/digits", "api_base": os.environ["BASE_URL"], "api_key": "none"}
    config.write_text(
        json.dumps({"model_list": [{"model_name": "numbers", "litellm_params": behind}]})
    )
    command = Path(sys.prefix, "proxy/bin/litellm")  # its exact versions are no other client's
    proxy = subprocess.Popen(
        [command, "--config", config, "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, "LITELLM_MASTER_KEY": KEY},
    )
    try:
        client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0)
        for _ in range(600):
            try:
                client.models.list()
                break
            except APIConnectionError:
                assert proxy.poll() is None
                time.sleep(0.2)
        how = {"model": "numbers", "messages": [{"role": "user", "content": "5"}]}
        whole = client.chat.completions.create(**how, max_tokens=3)
        assert whole.choices[0].message.content == " 6 7 8"
        assert whole.usage.completion_tokens == 3
        pieces = list(client.chat.completions.create(**how, max_tokens=3, stream=True))
        text = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
        assert text == " 6 7 8"
        tool = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
        called = client.chat.completions.create(
            **how, tools=[{"type": "function", "function": tool}]
        )
        assert called.choices[0].message.tool_calls[0].function.name == "weather"
        schema = {"type": "object", "properties": {"age": {"type": "integer"}}}
        wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        formed = client.chat.completions.create(**how, response_format=wanted)
        assert json.loads(formed.choices[0].message.content) == {"age": 7}
    finally:
        proxy.terminate()
        proxy.wait(30)

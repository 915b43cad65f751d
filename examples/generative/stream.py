"""Tokens as they are generated, by an unmodified Triton client: pip install tritonclient[grpc]."""

import sys

import numpy as np
import tritonclient.grpc as triton

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8664"
words = triton.InferInput("text_input", [1], "BYTES")
words.set_data_from_numpy(np.array(["Why is the sky blue?"], dtype=object))
with triton.InferenceServerClient(address) as client:
    client.start_stream(
        lambda result, error: print(
            error or result.as_numpy("text_output")[0].decode(), end="", flush=True
        )
    )
    client.async_stream_infer("chat", [words], parameters={"max_tokens": 60, "temperature": 0.0})
    client.stop_stream()  # waits for the answer

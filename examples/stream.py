"""Many requests on one stream, by an unmodified Triton client: pip install tritonclient[grpc]."""

import sys

import numpy as np
import tritonclient.grpc as triton

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8464"
image = triton.InferInput("image", [1, 64], "FP32").set_data_from_numpy(np.zeros((1, 64), "f4"))
with triton.InferenceServerClient(address) as client:
    client.start_stream(lambda result, error: print(error or result.as_numpy("label")))
    for number in range(10):
        client.async_stream_infer("digits", [image], request_id=str(number))
    client.stop_stream()  # waits for the answers

"""Send a request with an unmodified Triton client: pip install 'tritonclient[grpc]'."""

import sys

import numpy as np
import tritonclient.grpc as triton

address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8464"
client = triton.InferenceServerClient(address)
image = triton.InferInput("image", [1, 64], "FP32").set_data_from_numpy(np.zeros((1, 64), "f4"))
print(client.infer("digits", [image]).as_numpy("label"))

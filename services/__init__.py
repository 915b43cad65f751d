"""Cinquefoil's services. What they serve is their operator's business alone."""

import os

# ONNX Runtime starts its telemetry when it is imported: threads, a device id and a database below
# ~/.cache. What its API switches off later runs already.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# gRPC's handlers of fork() stop its threads, for children that call gRPC. Ours become other
# programs at once, and uvloop forks to start them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

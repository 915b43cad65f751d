"""Cinquefoil's services. What they serve is their operator's business alone."""

import os

# ONNX Runtime starts its telemetry when it is imported: threads, a device id and a database below
# ~/.cache. What its API switches off later runs already.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

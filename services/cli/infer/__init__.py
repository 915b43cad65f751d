"""One request over the Open Inference Protocol."""

"""`cinquefoil gpuagent smi`: a node's GPUs, as `nvidia-smi` prints them."""

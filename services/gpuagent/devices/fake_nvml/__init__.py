"""Simulated GPUs below NVML's C functions, with pynvml unmodified above them."""

"""The past: curves of the grid, power, load and latency, and the plans that ran meanwhile."""

"""Measures how variants run on a GPU: a client of the node's agent, whose machinery it uses."""

"""Measures profiles through a node's agent, and compares them."""

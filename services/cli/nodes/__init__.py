"""Nodes: which there are, and orders about them."""

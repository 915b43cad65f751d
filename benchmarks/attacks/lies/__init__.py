"""Lies of an agent, a router and a worker, each alone, with valid certificates of their own."""

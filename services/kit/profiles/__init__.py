"""Latency and power of a variant by slice: one interface, measured or modelled.

The planner plans with these numbers; a simulated GPU behaves by them.
"""

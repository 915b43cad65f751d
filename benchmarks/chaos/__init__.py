"""Faults under load."""

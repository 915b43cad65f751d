"""Regions: which there are, and what goes between them."""

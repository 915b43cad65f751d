"""Metrics pages of servers that are not ours, as they write them."""

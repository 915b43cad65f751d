"""`cinquefoil up`."""

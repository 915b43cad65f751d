"""Models of a deployment: list them, add and remove them while it serves."""

"""Models of a deployment: which there are, and adding and removing them while it serves."""

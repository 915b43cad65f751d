"""Present state of a deployment."""

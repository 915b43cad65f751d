"""Whether this machine can run a deployment."""

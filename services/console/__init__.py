"""The console: pages of a deployment."""

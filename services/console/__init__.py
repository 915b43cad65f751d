"""The console: pages of a deployment, read-only."""

"""The demo's models, deployment files and load."""

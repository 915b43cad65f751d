"""What the deployment does now."""

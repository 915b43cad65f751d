"""What starts a suite on one machine: processes, the demo's models and deployment files."""

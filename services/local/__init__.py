"""Local suites: their processes, the demo's models and deployment files."""

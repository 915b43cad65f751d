"""Report of a real GPU, read only."""

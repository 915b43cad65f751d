"""The deployment file, checked beyond its types."""

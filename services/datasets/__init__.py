"""Published traces and measurements: where each is from, and how it comes to this machine."""

"""Infrastructure shared by all services."""

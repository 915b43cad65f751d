"""A day of the grid in a minute, served twice."""

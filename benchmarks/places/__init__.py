"""One service in several regions: recorded grids in virtual time, and three live suites."""

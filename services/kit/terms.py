"""Terms of planners: how often those of one database have taken turns."""

from typing import Final

MOST_TERMS_AHEAD: Final = 1_000_000
"""Terms by which one may exceed the last that was known: those since a backup of the database."""

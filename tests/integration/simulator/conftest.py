"""A small scenario for the tests of this folder."""

from tests.support.scenarios import scenario, write

__all__ = ["scenario", "write"]

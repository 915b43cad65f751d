"""A small scenario for the tests of this folder."""

from tests.support.scenarios import scene, write

__all__ = ["scene", "write"]

"""The running suite for the tests of this folder."""

from tests.support.running_suite import config, folder, running, secured

__all__ = ["config", "folder", "running", "secured"]

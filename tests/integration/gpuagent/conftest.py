"""The simulated node for the tests of this folder."""

from tests.support.gpuagent.fake_node import clock, cut, gpus, library, start, work

__all__ = ["clock", "cut", "gpus", "library", "start", "work"]

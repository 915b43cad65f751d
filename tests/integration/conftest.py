"""Forked readers of others' files."""

from collections.abc import Iterator

import pytest

from tests.support import zygote
from tests.support.zygote import Zygote


@pytest.fixture(scope="session")
def _readers() -> Iterator[Zygote]:
    readers = Zygote.started(*zygote.OF_READERS)
    readers.wait()
    yield readers
    readers.close()


@pytest.fixture(scope="module")
def forked_readers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Confined processes of this module are forked: to start one takes a second of a core.

    Other modules start them as users do, and so does each test of the confinement.
    """
    if not zygote.wanted():
        yield
        return
    restore = zygote.install({zygote.READER: request.getfixturevalue("_readers")})
    yield
    restore()

"""Requests that a worker hands to a server."""

from services.gpuagent.worker.external_model import Forwarded


def test_two_clients_may_name_their_requests_alike() -> None:
    """Names are the clients' own; what they sent is not compared, for it may be large."""
    one, other = (Forwarded(data, 1.0, id="1", kind="any") for data in (b"one", b"other"))

    assert one != other
    assert len({one, other}) == 2

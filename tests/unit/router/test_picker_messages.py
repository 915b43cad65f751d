"""Messages to Envoy: what is written by hand is what protobuf reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envoy_ext_proc import ext_proc_pb2 as pb
from services.kit.errors import ResourceExhausted
from services.router.picker import messages


@given(st.integers(0, 200_000), st.booleans(), st.sampled_from(["request_body", "response_body"]))
def test_a_body_comes_back_from_its_pieces(size: int, ended: bool, kind: str) -> None:
    """Each is one that Envoy takes; the last alone says that the body has ended."""
    body = bytes(range(256)) * (size // 256 + 1)
    found = [
        pb.ProcessingResponse.FromString(each)
        for each in messages.pieces(kind, body[:size], ended=ended)
    ]
    parts = [getattr(each, kind).response.body_mutation.streamed_response for each in found]

    assert {each.WhichOneof("response") for each in found} == {kind}
    assert b"".join(each.body for each in parts) == body[:size]
    assert max(len(each.body) for each in parts) <= 65_536
    assert [each.end_of_stream for each in parts] == [False] * (len(parts) - 1) + [ended]


@pytest.mark.parametrize("kind", ["request_headers", "request_body"])
def test_the_header_and_the_metadata_name_the_same_servers(kind: str) -> None:
    """And the header replaces one that the client sent."""
    found = pb.ProcessingResponse.FromString(messages.destination("a:1,b:2", kind))
    (header,) = getattr(found, kind).response.header_mutation.set_headers

    assert header.append_action == pb.OVERWRITE_IF_EXISTS_OR_ADD
    assert header.header.raw_value == b"a:1,b:2"
    metadata = found.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert metadata[messages.DESTINATION].string_value == "a:1,b:2"


def test_a_subset_comes_as_a_list_or_as_one_text() -> None:
    values: tuple[list[str] | str, ...] = (["a:1", "b:2"], "a:1, b:2")
    for value in values:
        message = pb.ProcessingRequest()
        fields = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        fields.update({f"{messages.DESTINATION}-subset": value})
        assert messages.subset_of(message) == frozenset(("a:1", "b:2"))
    assert messages.subset_of(pb.ProcessingRequest()) is None


def test_a_refusal_is_an_answer_with_when_to_try_again() -> None:
    error = ResourceExhausted("full", reason="QUEUE_FULL", retry_after_s=1.2)
    answer = pb.ProcessingResponse.FromString(messages.refusal(error)).immediate_response
    headers = {each.header.key: each.header.raw_value for each in answer.headers.set_headers}

    assert answer.status.code == 429
    assert headers["retry-after"] == b"2"
    assert b"full" in answer.body

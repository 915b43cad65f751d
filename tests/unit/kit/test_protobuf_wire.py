"""Messages read field by field say what protobuf's own classes say."""

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.gpuagent.v1 import worker_pb2 as pb
from services.kit.protobuf_wire import taken_out

WORK = st.builds(
    pb.Work,
    id=st.integers(0, 2**64 - 1),
    request=st.binary(max_size=40),
    remaining_s=st.floats(0, 1e6),
    traceparent=st.text(max_size=9),
)


@given(
    message=st.builds(
        pb.ExecuteRequest,
        work=st.lists(WORK, max_size=4),
        cancelled_ids=st.lists(st.integers(0, 2**64 - 1), max_size=4),
    )
)
def test_what_is_taken_out_and_what_is_left_are_the_message(message: pb.ExecuteRequest) -> None:
    """Nothing is lost, doubled or changed, whatever stands around the field."""
    rest, work = taken_out(memoryview(message.SerializeToString()), 1)

    assert [pb.Work.FromString(bytes(each)) for each in work] == list(message.work)
    assert list(pb.ExecuteRequest.FromString(rest).cancelled_ids) == list(message.cancelled_ids)
    assert not pb.ExecuteRequest.FromString(rest).work

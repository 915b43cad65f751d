"""OpenAI's objects of batches."""

from datetime import UTC, datetime, timedelta

from cinquefoil.batch.v1.records import Batch, BatchOutlook, BatchState
from services.batch.edge.documents import batch_document

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def test_a_batch_says_what_is_expected_of_it_to_clients_of_openai() -> None:
    """A window that cannot be kept is shown at once, with what would make it possible."""
    text = "7 of 40 requests due by 13:00 UTC will be late; possible with 1 replica more"
    outlook = BatchOutlook(done_by=NOON + timedelta(hours=2), late_requests=7, text=text)
    batch = Batch(
        id="batch_1",
        state=BatchState.IN_PROGRESS,
        window=timedelta(hours=1),
        created_at=NOON,
        outlook=outlook,
    )

    found = batch_document(batch)["outlook"]

    done_by = int(NOON.timestamp()) + 7200
    assert found == {"done_by": done_by, "late_requests": 7, "text": text}

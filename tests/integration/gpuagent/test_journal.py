"""The journal outlives the agent, and a damaged one is reported."""

from pathlib import Path

import pytest

from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from services.gpuagent.core.transaction_rules import PriorSlice, PriorState
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.journal import Journal
from services.kit.errors import FailedPrecondition

SPECS = tuple(
    SegmentSpec(f"s-{number}", "m", "v", 4, 2, "GPU-1", Placement("1g.5gb", number))
    for number in range(3)
)


def test_what_was_saved_last_is_loaded_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.json"
    Store(path, Journal).save(Journal(SPECS))
    Store(path, Journal).save(Journal(SPECS[1:]))

    assert Store(path, Journal).load() == Journal(SPECS[1:])


def test_a_node_that_never_ran_has_no_journal(tmp_path: Path) -> None:
    assert Store(tmp_path / "journal.json", Journal).load() is None


def test_a_crash_while_writing_leaves_the_journal_before(tmp_path: Path) -> None:
    """A half-written file of a crash lies beside the journal, not in it."""
    Store(tmp_path / "journal.json", Journal).save(Journal(SPECS))
    (tmp_path / "journal.json.draft").write_text('{"version": 1, "segm')

    journal = Store(tmp_path / "journal.json", Journal)
    assert journal.load() == Journal(SPECS)
    journal.save(Journal(()))
    assert journal.load() == Journal(())


@pytest.mark.parametrize(("text", "says"), [("{", "damaged"), ('{"version": 9}', "version 1")])
def test_a_file_that_is_not_a_journal_is_reported_with_its_path(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "journal.json").write_text(text)

    with pytest.raises(FailedPrecondition, match=f"journal.json.*{says}"):
        Store(tmp_path / "journal.json", Journal).load()


@pytest.mark.parametrize("kind", [Journal, PriorState])
def test_a_journal_that_lacks_its_entries_is_damaged_not_empty(
    tmp_path: Path, kind: type[Journal | PriorState]
) -> None:
    """Taken for empty, it would have an agent end every worker, or leave a change half done."""
    path = tmp_path / "journal.json"
    path.write_text('{"version": 1}')

    with pytest.raises(FailedPrecondition, match=r"journal\.json is damaged"):
        Store(path, kind).load()


def test_what_a_change_touches_is_there_until_it_is_cleared(tmp_path: Path) -> None:
    then = PriorState(
        (
            PriorSlice("GPU-1", Placement("1g.5gb", 0), existed=True),
            PriorSlice("GPU-1", Placement("2g.10gb", 2), existed=False),
        ),
        {"s-0": SPECS[0], "new": None},
        {"GPU-1": 990},
        {"GPU-1": True},
    )
    journal = Store(tmp_path / "change.json", PriorState)
    assert journal.load() is None

    journal.save(then)
    assert Store(tmp_path / "change.json", PriorState).load() == then
    journal.clear()
    journal.clear()
    assert journal.load() is None

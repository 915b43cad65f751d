"""The account of requests that waited, as `carbon report` shows it."""

from rich.console import Console

from cinquefoil.batch.v1 import batch_pb2 as pb
from services.cli.waiting_account import render


def test_a_row_says_what_waiting_and_sharing_saved_or_that_it_is_not_known() -> None:
    """Beside the emissions of other ways, with their sign; nothing where none is known."""
    known = pb.WaitingAccount(
        owner="ada", model="chat", completed=10, carbon_marginal_gco2e=0.5, at_once_gco2e=1.0
    )
    known.own_pool_gco2e = 0.25
    console = Console(width=200, record=True)
    console.print(render([known, pb.WaitingAccount(owner="bob", model="chat")]))
    lines = console.export_text().splitlines()
    ada, bob = (line for line in lines if line.strip().startswith(("ada", "bob")))

    assert "50.0 % less" in ada
    assert "100.0 % more" in ada
    assert "less" not in bob

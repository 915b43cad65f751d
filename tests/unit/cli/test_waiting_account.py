"""The account of requests that waited, as `carbon report` shows it."""

from rich.console import Console

from cinquefoil.batch.v1 import batch_pb2 as pb
from services.cli.waiting_account import render


def test_80_columns_say_what_each_owner_added_and_what_waiting_and_sharing_saved() -> None:
    """With their sign; nothing is said of a batch whose grid was not known when it began."""
    known = pb.WaitingAccount(
        owner="ada@example.org",
        model="chat",
        completed=123456,
        energy_j=9210.0,
        energy_marginal_j=4570.0,
        carbon_marginal_gco2e=0.5,
        at_once_gco2e=1.0,
        own_pool_gco2e=0.25,
    )
    unknown = pb.WaitingAccount(owner="bob", model="chat", carbon_marginal_gco2e=9.0)
    console = Console(width=80, record=True)
    console.print(render([known, unknown]))
    said = console.export_text()

    ada = next(line for line in said.splitlines() if "ada@example.org" in line)
    assert " ".join(ada.split()[1:]) == "chat 123456 9.21 kJ 4.57 kJ 500 mg 1 g 250 mg"
    assert "50.0 % less than at once; 100.0 % more than on replicas" in " ".join(said.split())

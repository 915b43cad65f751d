"""Receipts as watchers are sent them."""

from services.kit.clock import RealClock
from services.kit.request_cost import Cost
from services.router.adapters.convert import to_receipts
from services.router.core.accounting.receipt_watchers import Receipt
from services.router.core.model import Instance


def test_a_receipt_states_the_wait_in_the_router_and_the_worker_together() -> None:
    instance = Instance("a:1", "s", "m", "v", accuracy=0.9, share=1.0, credits=1)
    cost = Cost(3.6, 0.1, "model", queue_s=0.5, compute_s=0.25, batch_size=1)
    receipt = Receipt(1.0, instance, 2.0, 1.5, cost, None)

    (found,) = to_receipts("r", [receipt], 0, RealClock()).receipts

    assert found.queue_s == 1.5
    assert found.energy_j == 3.6
    assert not found.HasField("carbon_gco2e")

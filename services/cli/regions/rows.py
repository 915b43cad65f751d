"""Regions in rows: what goes between them, and what came home if one were lost."""

from collections.abc import Iterator, Mapping
from types import SimpleNamespace

from cinquefoil.regions.v1.regions_pb2 import Flow, ListRegionsResponse, Region
from services.cli.console.messages import values
from services.cli.console.quantities import percent


def region_rows(found: ListRegionsResponse | None) -> list[SimpleNamespace]:
    """Return a row for each region and model, this region's first.

    Of a peer: `load_if_lost` is the load of this region without it, of its capacity, and
    `carbon_if_lost_gco2e_per_h` what its share emits more at home.
    """
    if found is None or not found.regions:
        return []
    home, *peers = found.regions
    at_home = {flow.model: flow for flow in home.flows}
    load_rps = {
        model: flow.sent_rps + sum(_balance_rps(peer, model) for peer in peers)
        for model, flow in at_home.items()
    }
    rows = list(_rows(home, "here"))
    for peer in peers:
        rows += _rows(peer, "reachable")
    for row in rows[len(home.flows) or 1 :]:
        flow = at_home.get(row.model)
        if flow is not None and flow.granted_rps > 0:
            without_rps = load_rps[row.model] + row.sent_rps - row.received_rps
            more_gco2e = row.sent_rps * (flow.carbon_gco2e - row.carbon_gco2e)
            row.load_if_lost = without_rps / flow.granted_rps
            row.carbon_if_lost_gco2e_per_h = 3600 * more_gco2e
    return rows


def _balance_rps(peer: Region, model: str) -> float:
    return sum(flow.received_rps - flow.sent_rps for flow in peer.flows if flow.model == model)


def _rows(region: Region, place: str) -> Iterator[SimpleNamespace]:
    state = region.reason if not region.reachable else place
    if region.draining and region.reachable:
        state = f"{place}, draining"
    for flow in region.flows or (Flow(),):
        own: Mapping[str, object] = values(flow)
        yield SimpleNamespace(
            region=region.name,
            here=place == "here",
            state=state,
            round_trip_s=region.round_trip_s or None,
            load_if_lost=None,
            carbon_if_lost_gco2e_per_h=None,
            **own,
        )


def region_line(row: SimpleNamespace) -> str:
    """Return a peer's row in one sentence."""
    if row.state != "reachable" or not row.model:
        return f"region {row.region}: {row.state}"
    lost = "" if row.load_if_lost is None else f"; if lost, home is at {percent(row.load_if_lost)}"
    waiting = f", {row.waiting_rps:.1f} that can wait go" if row.waiting_rps > 0 else ""
    return (
        f"region {row.region}: {row.sent_rps:.1f} req/s of {row.model} go there, "
        f"{row.received_rps:.1f} come{waiting}{lost}"
    )

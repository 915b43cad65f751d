"""Shares of a site's power budget."""

from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.power.shares import NodeDraw, shares_w

POWERS = st.floats(0.0, 1.0)


@st.composite
def nodes(draw: st.DrawFn) -> list[NodeDraw]:
    return [
        NodeDraw(
            f"node-{index}",
            draw(st.floats(1.0, 2.0)),
            host_w=draw(st.floats(0.0, 500.0)),
            idle_w=200.0,
            most_w=1600.0,
            power_w=200.0 + 1400.0 * draw(POWERS),
            fixed=draw(st.booleans()),
        )
        for index in range(draw(st.integers(1, 6)))
    ]


@given(nodes(), st.floats(0.0, 20_000.0))
def test_shares_never_exceed_the_budget(found: list[NodeDraw], limit_w: float) -> None:
    """At the wall, shares and what cannot be limited add up to the budget or to idle power."""
    given_w = shares_w(limit_w, found)
    free = {node.name: node for node in found if not node.fixed}
    assert given_w.keys() == free.keys()
    fixed_w = sum(node.wall_w for node in found if node.fixed)
    idle_w = sum(node.pue * (node.host_w + node.idle_w) for node in free.values())
    wall_w = sum(free[n].pue * (free[n].host_w + share_w) for n, share_w in given_w.items())
    assert fixed_w + wall_w <= max(limit_w, fixed_w + idle_w) * (1 + 1e-9)
    assert all(share_w >= free[name].idle_w for name, share_w in given_w.items())


def test_power_goes_where_it_is_drawn_and_idle_nodes_may_begin() -> None:
    """A busy node has most of the power above idle, an idle one some."""
    busy = NodeDraw("busy", 1.0, 0.0, 200.0, 1600.0, 1200.0)
    idle = NodeDraw("idle", 1.0, 0.0, 200.0, 1600.0, 200.0)
    given_w = shares_w(1400.0, [busy, idle])
    assert given_w["busy"] > 1100.0
    assert given_w["idle"] > 240.0

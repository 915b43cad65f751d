"""The simulated fleet of language models: every request is answered, and no token is free."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.llm import heldout
from benchmarks.llm.bound import bound_j_per_token
from benchmarks.llm.elastic import Fleet, Site, figures
from benchmarks.llm.engine import (
    CLOCKS,
    KV_TOKENS,
    POOL,
    Engine,
    Limits,
    Request,
    gpu,
    least_requests,
    serve,
)
from benchmarks.llm.live import TTFT_S, Answer, row
from benchmarks.llm.policies import (
    GPUS,
    AsRouter,
    Consolidated,
    Setup,
    always,
    capped,
    fixed,
    planned,
    run,
)
from benchmarks.llm.prefixes import by_weight, most_reused, reuse

TRACE = [
    Request(0.05 * number, 100 + number % 7 * 300, 20 + number % 5 * 30) for number in range(60)
]
LIMITS = Limits(2.0, 0.05)
STATIC = Setup(GPUS, 512, fixed(1.0), always(least_requests))
TOGETHER = Consolidated(LIMITS, 0.7, 12.5)


def test_every_request_has_its_tokens_in_order() -> None:
    """A single request takes its prompt and its steps; with others, it takes no less."""
    requests = [replace(request) for request in TRACE]
    replicas = [gpu(Engine(), fixed(1.0)) for _ in range(2)]
    serve(requests, replicas, least_requests)
    alone = replace(TRACE[0])
    serve([alone], [gpu(Engine(), fixed(1.0))], least_requests)

    assert all(each.arrived_s < each.first_s < each.ended_s for each in requests)
    assert all(not replica.requests and abs(replica.context) < 1e-6 for replica in replicas)
    assert all(not replica.waiting_tokens and not replica.kept for replica in replicas)
    assert alone.tpot_s <= min(each.tpot_s for each in requests) * (1 + 1e-9)


def test_contexts_that_do_not_fit_into_memory_wait() -> None:
    """Two prompts that fill a GPU's memory one by one are not answered at the same time."""
    first, second = (Request(0.0, KV_TOKENS - 100, 50) for _ in range(2))
    serve([first, second], [gpu(Engine(), fixed(1.0))], least_requests)

    assert second.first_s > first.ended_s


@pytest.mark.parametrize(
    "setup",
    [
        STATIC,
        replace(STATIC, clock_at=fixed(CLOCKS[0])),
        replace(STATIC, clock_at=capped(400)),
        replace(STATIC, clock_at=TOGETHER.clock_at, choose=always(TOGETHER)),
    ],
    ids=["static", "lowest clock", "power cap", "consolidated"],
)
def test_no_policy_is_below_the_bound(setup: Setup) -> None:
    """The relaxed program's energy is less than any schedule's that it allows."""
    assert bound_j_per_token(TRACE, LIMITS, GPUS) < run(TRACE, LIMITS, setup)["j_per_token"]


def test_consolidated_saves_energy_and_keeps_the_objective() -> None:
    """Fewer replicas than there are answer, for less energy, in time."""
    setup = replace(STATIC, clock_at=TOGETHER.clock_at, choose=always(TOGETHER))
    static, together = run(TRACE, LIMITS, STATIC), run(TRACE, LIMITS, setup)

    assert together["gpus"] < static["gpus"]
    assert together["j_per_token"] < static["j_per_token"]
    assert together["attainment"] == 1.0


def test_the_routers_choice_saves_energy_and_keeps_the_objective_by_what_it_measured() -> None:
    """The router knows no profile: the first answers show how many a replica may take at a time."""
    trace = [replace(each, arrived_s=each.arrived_s + 3.0 * k) for k in range(4) for each in TRACE]
    setup = replace(STATIC, choose=lambda requests: AsRouter(requests, GPUS, LIMITS))
    static, routed = run(trace, LIMITS, STATIC), run(trace, LIMITS, setup)

    assert routed["j_per_token"] < 0.9 * static["j_per_token"]
    assert routed["attainment"] == 1.0


def test_a_power_limit_lowers_the_clock() -> None:
    """A limit that no step reaches changes nothing; one that steps reach saves energy."""
    free, loose, tight = (
        run(TRACE, LIMITS, replace(STATIC, gpus=1, clock_at=clock_at))["j_per_token"]
        for clock_at in (fixed(1.0), capped(700), capped(350))
    )

    assert tight < loose == free


def test_the_plan_counts_tokens_not_requests() -> None:
    """A minute of few long prompts needs more replicas than one of as many short ones."""
    short = [Request(number / 30, 500, 100) for number in range(1800)]
    long = [replace(each, arrived_s=60 + each.arrived_s, input_tokens=4_000) for each in short]

    assert planned(short + long, LIMITS)[0] > planned(short + short, LIMITS)[0]


def test_prompts_that_begin_alike_are_computed_once_at_even_load() -> None:
    """Twelve users who go on with their own texts: a replica has read most of the next prompt."""
    blocks = [[1000 * user + at for at in range(8)] for user in range(12)]
    trace = [
        Request(turn * 12.0 + user, (5 + turn) * 512, 40, blocks=tuple(blocks[user][: 5 + turn]))
        for turn in range(4)
        for user in range(12)
    ]
    least, prefix = (
        reuse(trace, LIMITS, 100, choose)
        for choose in (lambda _: lambda r, _, n: r[(n + n // 12) % 4], by_weight(0.1))
    )

    assert least["reused"] < 0.1
    assert prefix["reused"] == pytest.approx(most_reused(trace), rel=0.05)
    assert prefix["busiest_over_mean"] < 1.2


def test_live_rows_count_what_was_lost_and_what_was_late() -> None:
    """A lost text has no tokens, and is not in time."""
    receipt = {
        "output_tokens": 10, "first_token_s": 1.0, "token_s": 0.1,
        "energy_j": 5.0, "carbon_gco2e": 1e-3,
    }  # fmt: skip
    late = receipt | {"first_token_s": 2 * TTFT_S}
    found = row("shares", [Answer(receipt), Answer(late), Answer({}, "gone")], 0.1, 10.0)

    assert (found["texts"], found["lost"]) == (3, 1)
    assert found["attainment"] == pytest.approx(1 / 3)
    assert found["j_per_token"] == pytest.approx(0.5)
    assert found["router_over_servers_cpu"] == pytest.approx(0.01)


SITE = Site(("clean", "dirty") * 4, lambda zone, _: {"clean": 50.0, "dirty": 600.0}[zone], 30.0)
STEADY = [Request(0.05 * number, 400, 40) for number in range(4000)]


@pytest.mark.parametrize("name", heldout.policies(LIMITS, SITE))
def test_every_policy_answers_every_request_and_counts_all_that_its_gpus_draw(name: str) -> None:
    """Idle GPUs draw 74 W at least: no policy ends below what eight of them take."""
    found = figures(STEADY, LIMITS, SITE, heldout.policies(LIMITS, SITE)[name])
    tokens = sum(each.output_tokens for each in STEADY)
    idle_j = 8 * POOL.type.idle_power_w * STEADY[-1].arrived_s / tokens

    assert found["j_per_token"] >= found["active_j_per_token"] + idle_j
    assert found["released_j_per_token"] <= found["j_per_token"]
    assert 0 < found["gpus"] <= 8
    assert found["attainment"] > 0.5


def test_ours_leaves_the_dirty_zone_and_keeps_the_objective() -> None:
    """The load needs one GPU or two: those that stay are in the clean zone, and all is in time."""
    mine, all_on = (
        figures(STEADY, LIMITS, SITE, heldout.policies(LIMITS, SITE)[name])
        for name in (heldout.OURS, "clocks locked at 0.6")
    )

    assert mine["attainment"] >= 0.99
    assert mine["gpus"] < 6
    assert mine["g_per_token"] < 0.7 * all_on["g_per_token"]
    assert mine["j_per_token"] < all_on["j_per_token"]


def test_a_gpu_that_is_started_serves_after_its_boot_and_others_serve_until_then() -> None:
    fleet = Fleet(SITE, fixed(1.0))
    order = [*fleet.units[5:7], *fleet.units[:5]]
    fleet.scale(1, 0.0)
    assert [unit.state for unit in fleet.units] == ["on"] + ["parked"] * 7

    fleet.scale(2, 10.0, order)
    assert [fleet.units[at].state for at in (0, 5, 6)] == ["on", "booting", "booting"]
    fleet.advance(39.0)
    assert fleet.wanted == 3
    fleet.advance(41.0)
    fleet.scale(2, 41.0, order)

    assert [fleet.units[at].state for at in (0, 5, 6)] == ["parked", "on", "on"]


def test_a_window_of_azure_is_read_as_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,0\n"
    )

    first, second = heldout.read(path)

    assert (first.arrived_s, first.input_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.arrived_s == pytest.approx(0.052)
    assert second.output_tokens == 1


def test_what_the_parts_save_adds_up_to_what_the_whole_does() -> None:
    names = ("least requests", "clocks", "consolidation", "elasticity", heldout.OURS)
    rows = [
        {"policy": name, "j_per_token": 1.0 - 0.1 * at, "g_per_token": 2.0 - 0.3 * at}
        for at, name in enumerate(names)
    ]

    parts = heldout._parts(rows)

    assert sum(each for key, each in parts.items() if key.startswith("j ")) == pytest.approx(0.4)
    assert sum(each for key, each in parts.items() if key.startswith("g ")) == pytest.approx(0.6)

"""Language models in virtual time: no token and no joule comes from nowhere."""

import json
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from services.kit.profiles.core.language import LanguageProfile, step_s
from services.planner.core.accounting.account import Tokens
from services.planner.core.load_report import MOST_TOKENS_PER_S, LoadReport
from services.simulator.continuous_batching import Replica, StepCosts, Text
from services.simulator.device import gpu_type
from services.simulator.loader import Setting, read
from services.simulator.report.figures import TextFigures, figures
from services.simulator.report.report import run
from services.simulator.run import draw_arrivals, draw_lengths, simulate
from services.simulator.stats.run_record import RunRecord
from tests.support.scenarios import merged

VARIANT: Mapping[str, Any] = {
    "accuracy": 0.6,
    "profile": {"kind": "language", "parameters_b": 8, "prompt_tokens": 200, "answer_tokens": 40},
    "runtime": {"kind": "openai", "command": ["vllm", "serve", "--port", "{port}"]},
}
CHAT: Mapping[str, Any] = {
    "version": "v1",
    "duration_s": 60,
    "detail": "full",
    "policies": ["exact"],
    "deployment": {
        "version": "v1",
        "carbon": {"zones": {"Z": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200}}}},
        "nodes": {"n": {"zone": "Z", "simulated": ["h100-80gb", "h100-80gb"]}},
        "planner": {"batch_sizes": [1, 8, 64], "clock_ratios": [0.6, 1.0]},
        "models": {
            "chat": {
                "slo": {"percentile": 95, "latency_s": 30, "ttft_s": 1.0, "tpot_s": 0.05},
                "demand_rps": 5,
                "variants": {"8b": VARIANT},
            }
        },
    },
}
H100 = gpu_type("h100-80gb")
WHOLE = H100.shape(max(H100.geometry.kinds, key=lambda kind: kind.sm_count))

ScenarioOf = Callable[[Mapping[str, Any]], Setting]


@pytest.fixture
def chat(tmp_path: Path) -> ScenarioOf:
    """Return a function that reads a scenario of one language model, with changes."""

    def scenario(changes: Mapping[str, Any]) -> Setting:
        path = tmp_path / "chat.yaml"
        path.write_text(yaml.safe_dump(merged(CHAT, changes), sort_keys=False))
        return read(path)

    return scenario


def model(**changes: Any) -> dict[str, Any]:
    """Return a change of the model's settings."""
    return {"deployment": {"models": {"chat": changes}}}


def constant(rate_rps: float) -> dict[str, Any]:
    """Return a load."""
    return {"chat": {"kind": "constant", "rate_rps": rate_rps}}


def recorded(folder: Path, *rows: tuple[float, int, int]) -> dict[str, Any]:
    """Return a load of requests: when each arrives, tokens of its prompt and of its answer."""
    path = folder / "requests.csv"
    path.write_text("\n".join(["arrival_s,prompt,answer", *(f"{a},{p},{o}" for a, p, o in rows)]))
    columns = {"prompt_column": "prompt", "answer_column": "answer"}
    return {"load": {"chat": {"kind": "recorded", "path": str(path), **columns}}}


def see(setting: Setting) -> RunRecord:
    """Simulate the scenario's first policy."""
    return simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))


def texts(seen: RunRecord) -> TextFigures:
    """Return the figures of the model's tokens."""
    found = figures(seen).models["chat"].texts
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(3))
def test_every_joule_of_a_replica_is_some_texts(seed: int) -> None:
    """Texts dropped half-way have their energy, too; at the end nothing is left in the replica."""
    rng = np.random.default_rng(seed)
    replica = Replica(StepCosts(LanguageProfile.of(8.0), WHOLE), lambda _, __: (1.0, inf), 4, 3000)
    made = [Text(0.0, int(p), int(a)) for p, a in rng.integers(1, 1200, (20, 2))]
    for text in made:
        replica.add(text, 0.0)
    now_s = busy_s = 0.0
    dropped = list(rng.choice(len(made), 6, replace=False))
    for number in range(10_000):
        if not replica.requests:
            break
        replica.begin(now_s)
        if number % 3 == 0:
            replica.cut(now_s)
        began_s, now_s = now_s, replica.ends_s
        replica.end(now_s)
        busy_s += now_s - began_s
        if number % 8 == 0 and dropped:
            text = made[dropped.pop()]
            if not text.ended_s:
                replica.drop(text)

    assert (replica.requests, replica.waiting_tokens, replica.kept) == (0, 0, 0)
    assert replica.context == pytest.approx(0.0)
    assert sum(text.energy_j for text in made) == pytest.approx(replica.active_j)
    assert busy_s == pytest.approx(replica.busy_s)
    assert all(text.energy_j >= 0 for text in made)


def test_tokens_and_energy_are_conserved(chat: ScenarioOf, tmp_path: Path) -> None:
    """Tokens are those of the file, and energy is the integral of the power over time."""
    rows = [(0.2 * k, 50 + 37 * k % 900, 1 + 13 * k % 120) for k in range(200)]
    seen = see(chat(recorded(tmp_path, *rows)))
    found = figures(seen)
    report = texts(seen)

    assert (found.sent, found.lost, found.still_open) == (200, 0, 0)
    assert report.input_tokens == sum(prompt for _, prompt, _ in rows)
    assert report.output_tokens == sum(answer for _, _, answer in rows)
    # All texts fit on one of the two: the other one has no context.
    assert found.idle_j == pytest.approx((H100.context_power_w + H100.idle_power_w) * 60)
    assert report.active_j_per_token == pytest.approx(found.active_j / report.output_tokens)
    assert found.models["chat"].met


def test_a_lone_text_takes_what_the_profile_says(chat: ScenarioOf, tmp_path: Path) -> None:
    """First the prompt's step, then a step for each token of the answer."""
    setting = chat(recorded(tmp_path, (10.0, 300, 2)) | {"policies": ["base"]})
    steps, report = LanguageProfile.of(8.0).steps(WHOLE), texts(see(setting))
    timing = setting.scenario.timing

    prompt_s = step_s(steps, 0, 0, 300)
    assert report.ttft_p50_s == pytest.approx(prompt_s + 2 * timing.link_s + timing.client_s)
    assert report.tpot_p50_s == pytest.approx(step_s(steps, 1, 301))


def test_the_same_seed_gives_the_same_report(chat: ScenarioOf) -> None:
    """Lengths of texts are drawn by the scenario's seed, for every policy alike."""

    def document(seed: int) -> str:
        setting = chat({"seed": seed, "duration_s": 20})
        return json.dumps(run("t", setting, setting.scenario.policies, lambda *_: None).document())

    assert document(1) == document(1)
    assert document(1) != document(2)


def test_drawn_lengths_have_the_means_and_variations_requested(chat: ScenarioOf) -> None:
    """The profile's means, or the scenario's."""
    setting = chat({
        "texts": {"chat": {"answer_tokens": 90, "answer_cv": 0}},
        "load": constant(500),
    })  # fmt: skip
    drawn = draw_lengths(setting, draw_arrivals(setting))["chat"]

    assert drawn[:, 0].mean() == pytest.approx(200, rel=0.03)
    assert drawn[:, 0].std() / drawn[:, 0].mean() == pytest.approx(0.96, rel=0.1)
    assert set(drawn[:, 1].tolist()) == {90}


def test_a_context_that_is_full_ends_the_answer(chat: ScenarioOf, tmp_path: Path) -> None:
    """A prompt that leaves no room is refused, as live."""
    limited = model(variants={"8b": {"runtime": {"context_tokens": 256}}})
    load = recorded(tmp_path, (1.0, 200, 100), (2.0, 256, 10))
    seen = see(chat(merged(limited, load)))

    assert figures(seen).models["chat"].failures == {"INVALID_ARGUMENT": 1}
    assert texts(seen).output_tokens == 56


def test_a_text_that_is_out_of_time_frees_its_slot(chat: ScenarioOf, tmp_path: Path) -> None:
    """The next one is answered, whose slot it would be in for half a minute."""
    slow = model(variants={"8b": {"runtime": {"slots": 1}}}, default_deadline_s=2.0)
    one = {"deployment": {"nodes": {"n": {"simulated": ["h100-80gb"]}}}}
    load = recorded(tmp_path, (1.0, 200, 5000), (2.5, 200, 20), (9.0, 200, 20))
    seen = see(chat(merged(merged(slow, one), load)))

    assert figures(seen).models["chat"].failures == {"DEADLINE_EXCEEDED": 1}
    assert texts(seen).output_tokens == 40


def test_what_is_late_is_late_by_any_of_its_objectives(chat: ScenarioOf, tmp_path: Path) -> None:
    """A first token later than promised counts, although the text ends in time."""
    load = recorded(tmp_path, (1.0, 20_000, 20), (20.0, 200, 20))
    seen = see(chat(load))

    assert figures(seen).models["chat"].late == 1
    assert texts(seen).in_time == 0.5


def test_few_full_replicas_take_less_energy(chat: ScenarioOf) -> None:
    """The router's own choice `consolidated`, fed by simulated tokens, against equal shares."""
    busy = {"load": constant(20), "policies": ["base"], "duration_s": 40}
    shares, together = (
        texts(see(chat(busy | model(instance_choice=choice))))
        for choice in ("shares", "consolidated")
    )

    assert together.active_j_per_token is not None
    assert shares.active_j_per_token is not None
    assert together.active_j_per_token < 0.95 * shares.active_j_per_token
    assert together.in_time == 1.0


def test_a_text_goes_where_the_kv_cache_has_room(chat: ScenarioOf, tmp_path: Path) -> None:
    """By shares the third would be behind the first, whose context leaves it no memory for 30 s."""
    large = merged(VARIANT, {"profile": {"kv_kib_per_token": 1024}})
    load = recorded(tmp_path, (1.0, 50_000, 3000), (1.1, 100, 10), (6.0, 30_000, 10))
    seen = see(chat(load | {"policies": ["base"]} | model(variants={"8b": large})))

    longest_s = texts(seen).ttft_p99_s
    assert longest_s is not None
    assert longest_s < 10.0


def test_a_sample_is_near_the_whole(chat: ScenarioOf) -> None:
    """Tokens, J per token and times of a quarter of the requests stand for all of them."""
    steady = {
        "duration_s": 160,
        "texts": {"chat": {"prompt_cv": 0.3, "answer_cv": 0.3}},
        "sampling": {"window_s": 10, "period_s": 40, "settle_s": 4, "least_requests": 20},
    }
    full, sampled = (see(chat(steady | {"detail": detail})) for detail in ("full", "sampled"))
    whole, part = texts(full), texts(sampled)

    assert figures(sampled).simulated < 0.5 * figures(full).simulated
    assert part.output_tokens == pytest.approx(whole.output_tokens, rel=0.05)
    assert part.active_j_per_token == pytest.approx(whole.active_j_per_token, rel=0.1)
    assert part.tpot_p50_s == pytest.approx(whole.tpot_p50_s, rel=0.1)


def test_replicas_follow_the_load_although_no_text_can_be_in_time(
    chat: ScenarioOf, tmp_path: Path
) -> None:
    """Texts of 12 times the usual answer take longer than the objective, in any batch."""
    path = tmp_path / "load.csv"
    path.write_text("rps\n4\n16")
    long = model(demand_rps=4, slo={"latency_s": 3}, default_deadline_s=100)
    rising = {
        "duration_s": 150,
        "texts": {"chat": {"answer_tokens": 500, "prompt_cv": 0, "answer_cv": 0}},
        "load": {"chat": {"kind": "trace", "path": str(path), "step_s": 75}},
    }
    four = {"deployment": {"nodes": {"n": {"simulated": 4 * ["h100-80gb"]}}}}
    seen = see(chat(merged(merged(long, rising), four)))

    replicas = [sum(plan.slices.values()) for plan in seen.plans]
    assert replicas[0] == 1
    assert replicas[-1] >= 3
    assert figures(seen).models["chat"].failed == 0


def lie(monkeypatch: pytest.MonkeyPatch, begin_s: float) -> None:
    """Make the router report as many tokens as it may, from a time on."""
    reported_s = 0.0

    def false(*, window_s: float, tokens: Mapping[str, Tokens], **others: Any) -> LoadReport:
        nonlocal reported_s
        reported_s += window_s
        more = round(max(reported_s - begin_s, 0.0) * MOST_TOKENS_PER_S)
        false_tokens = {
            name: Tokens(each.input + more, each.output + more) for name, each in tokens.items()
        }
        return LoadReport(window_s=window_s, tokens=false_tokens, **others)

    monkeypatch.setattr("services.simulator.run.LoadReport", false)


def rising_load(chat: ScenarioOf, folder: Path, *rates_rps: float, **changes: Any) -> Setting:
    """A load in two parts, of five minutes and of two, on four GPUs at one clock."""
    path = folder / "load.csv"
    path.write_text("\n".join(map(str, ("rps", *rates_rps))))
    load = {"kind": "trace", "path": str(path), "step_s": 300}
    planner = {"clock_ratios": [1.0], "triggers": {"scale_down_s": 30}}
    deployment = {"nodes": {"n": {"simulated": 4 * ["h100-80gb"]}}, "planner": planner}
    changed = merged(model(demand_rps=rates_rps[0], **changes), {"deployment": deployment})
    return chat(merged(changed, {"duration_s": 420, "load": {"chat": load}}))


def test_a_router_that_reports_endless_texts_does_not_keep_a_plan_from_growing(
    chat: ScenarioOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10 million tokens a second, for answers of 40: they count as 16 times as long at most.

    As long as reported, they would be generated one at a time, and most real ones be refused.
    """
    lie(monkeypatch, begin_s=20.0)
    seen = see(rising_load(chat, tmp_path, 4, 60, slo={"tpot_s": 0.012}))

    replicas = [sum(plan.slices.values()) for plan in seen.plans]
    assert (replicas[0], replicas[-1]) == (1, 4)
    found = figures(seen).models["chat"]
    assert found.failed == 0
    assert found.met


def test_plans_are_for_the_usual_texts_where_nothing_can_serve_those_reported(
    chat: ScenarioOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose context is slow to read: 16 times the context miss its objective in any batch.

    Replicas follow the load as if nothing false were reported.
    """
    profile = {**VARIANT["profile"], "kv_kib_per_token": 8192}
    setting = rising_load(
        chat,
        tmp_path,
        2,
        12,
        variants={"8b": {**VARIANT, "profile": profile}},
        slo={"tpot_s": 0.015},
    )
    honest = see(setting)
    lie(monkeypatch, begin_s=20.0)
    attacked = see(setting)

    replicas = [[sum(plan.slices.values()) for plan in each.plans] for each in (honest, attacked)]
    assert replicas[0][-1] > replicas[0][0]
    assert replicas[0][0] == replicas[1][0]
    assert replicas[0][-1] == replicas[1][-1]
    late = [figures(each).models["chat"].late for each in (honest, attacked)]
    assert late[1] <= late[0] + 10


def test_a_dirty_grid_moves_texts_to_the_smaller_variant_as_far_as_the_floor_allows(
    chat: ScenarioOf,
) -> None:
    """Sizes of one family are variants like any other network's: accuracy for carbon.

    The load is one that pays for the second GPU, of which the mixture has each variant on one.
    """
    small = {**VARIANT, "accuracy": 0.5, "profile": {**VARIANT["profile"], "parameters_b": 1.5}}

    def shares(intensity: float, floor: float) -> Mapping[str, float]:
        zone = {"source": {"kind": "static", "intensity_gco2e_per_kwh": intensity}}
        both = {"8b": dict(VARIANT), "1b": small}
        changes = {
            "duration_s": 2,
            "deployment": {
                "carbon": {"zones": {"Z": zone}},
                "planner": {"objective": {"accuracy_floor": floor}},
            },
        }
        return (
            see(chat(merged(model(variants=both, demand_rps=60), changes))).plans[-1].shares["chat"]
        )

    assert shares(20, 0.0) == {"8b": 1.0}
    assert shares(800, 0.0) == {"1b": 1.0}
    assert shares(800, 0.95)["8b"] == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("rate_rps", "prompt_tokens", "answer_tokens", "processes"),
    [(5, 200, 40, 1), (40, 200, 40, 1), (40, 1000, 100, 1), (40, 200, 40, 3), (20, 1000, 100, 3)],
)
def test_a_plan_predicts_the_energy_of_a_token_that_meters_then_show(
    chat: ScenarioOf, rate_rps: float, prompt_tokens: int, answer_tokens: int, processes: int
) -> None:
    """Batches are as large as the load makes them, and steps with prompts draw more."""
    sizes = {"prompt_tokens": prompt_tokens, "answer_tokens": answer_tokens}
    profile = {**VARIANT["profile"], **sizes}
    planner = {"max_processes": processes, "objective": {"park_idle_gpus": True}}
    if processes > 1:
        planner["batch_sizes"] = [4]
    changes = {
        "duration_s": 29,  # until the first forecast: the plan is that of the configured load
        "load": constant(rate_rps),
        "deployment": {"nodes": {"n": {"simulated": 4 * ["h100-80gb"]}}, "planner": planner},
    }
    variants = {"8b": {**VARIANT, "profile": profile}}
    seen = see(chat(merged(model(demand_rps=rate_rps, variants=variants), changes)))

    (plan,) = seen.plans
    predicted_j = plan.power_w / (rate_rps * answer_tokens)
    metered_j = figures(seen).energy_j / texts(seen).output_tokens
    assert predicted_j == pytest.approx(metered_j, rel=0.15)


def test_replicas_leave_at_night_and_are_back_before_the_morning(
    chat: ScenarioOf, tmp_path: Path
) -> None:
    """Their servers boot for half a minute: the plan starts them while the load still grows.

    Meanwhile their GPUs are parked; no text is lost, and 99 in 100 keep their objectives.
    """
    evening_to_noon = (18, 18, 7, 2, 2, 2, 2, 3, 5, 7, 11, 15, 18, 18)
    path = tmp_path / "night.csv"
    path.write_text("\n".join(map(str, ("rps", *evening_to_noon))))
    planner = {
        "clock_ratios": [1.0],
        "objective": {"carbon_weight": 1.0, "park_idle_gpus": True},
        "triggers": {"scale_down_s": 30},
    }
    changes = {
        "duration_s": 60 * len(evening_to_noon),
        "load": {"chat": {"kind": "trace", "path": str(path), "step_s": 60}},
        "deployment": {"nodes": {"n": {"simulated": 3 * ["h100-80gb"]}}, "planner": planner},
    }
    profile = {**VARIANT["profile"], "answer_tokens": 120}
    replicas = model(
        demand_rps=1,
        slo={"tpot_s": 0.012},
        variants={"8b": {**VARIANT, "load_s": 30, "profile": profile}},
        instance_choice="consolidated",
    )
    seen = see(chat(merged(replicas, changes)))

    planned = [(plan.decided_s, sum(plan.slices.values())) for plan in seen.plans]
    evening = max(count for at_s, count in planned if at_s < 120)
    night_s, night = min(planned[1:], key=lambda each: (each[1], each[0]))
    back_s = min(at_s for at_s, count in planned if at_s > night_s and count > night)
    assert night < evening
    assert back_s + 30 < 12 * 60  # the morning's peak
    assert figures(seen).models["chat"].failed == 0
    in_time = texts(seen).in_time
    assert in_time is not None
    assert in_time >= 0.99

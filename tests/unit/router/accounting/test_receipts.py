"""Receipts of cost that callers get."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.kit.request_cost import Cost, Usage
from services.router.core.accounting.receipts import (
    Carbon,
    Receipts,
    cost_trailers,
    priced,
)
from services.router.core.model import Instance

INSTANCE = Instance("h:1", "s", "m", "small", 0.9, 1.0, 4, zone="US-CAL", pue=1.2)
RECEIPTS = Receipts("small", 0.9)


def cost(energy_j: float, method: str = "model") -> Cost:
    return Cost(energy_j, 9.0, method, queue_s=0.0, compute_s=0.0, batch_size=1)


def read(data: bytes) -> dict[str, object]:
    parsed = pb.ModelInferResponse.FromString(data)
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "")
        for key, value in parsed.parameters.items()
    }


@given(st.floats(0, 1e6), st.floats(0, 2000), st.text(max_size=40))
def test_carbon_is_energy_times_intensity_times_pue(
    energy_j: float, intensity: float, method: str
) -> None:
    given = cost(energy_j, method)
    both = priced(INSTANCE, given, {"US-CAL": intensity}.get)
    assert both is not None
    assert both.active == pytest.approx(energy_j / 3.6e6 * intensity * 1.2)
    total_j = energy_j + given.idle_energy_j
    assert both.total == pytest.approx(total_j / 3.6e6 * intensity * 1.2)
    assert read(RECEIPTS.add(b"", given, both).body) == {
        "model_variant": "small",
        "accuracy": 0.9,
        "energy_j": energy_j,
        "energy_idle_j": 9.0,
        "carbon_gco2e": both.active,
        "carbon_total_gco2e": both.total,
        "energy_method": method,
    }


@given(st.binary(max_size=200).map(lambda data: pb.ModelInferResponse(raw_output_contents=[data])))
def test_a_receipt_leaves_the_answer_as_it_was(answer: pb.ModelInferResponse) -> None:
    """Appending to serialized bytes is merging messages."""
    encoded = answer.SerializeToString() + RECEIPTS.add(b"", cost(1.0), Carbon(0.1, 0.2)).body

    parsed = pb.ModelInferResponse.FromString(encoded)

    parsed.parameters.clear()
    assert parsed == answer


def test_carbon_without_a_known_intensity_is_unknown_not_zero() -> None:
    carbon = priced(INSTANCE, cost(1.0), {"DE": 300.0}.get)

    assert carbon is None
    found = read(RECEIPTS.add(b"", cost(1.0, "counter"), carbon).body)
    assert found["carbon_status"] == "unknown"
    assert found["energy_method"] == "counter"
    assert "carbon_gco2e" not in found
    assert [key for key, _ in RECEIPTS.add(b"", cost(1.0), carbon).trailers] == [
        "cinquefoil-variant",
        "cinquefoil-energy-j",
    ]


def test_a_worker_that_says_no_cost_gets_none_invented() -> None:
    assert read(RECEIPTS.add(b"", None, None).body) == {"model_variant": "small", "accuracy": 0.9}
    assert RECEIPTS.add(b"", None, None).trailers == (("cinquefoil-variant", "small"),)


@given(st.floats(0, 1e6), st.floats(0, 1e3))
def test_trailers_say_the_same_numbers_to_nine_digits(energy_j: float, carbon: float) -> None:
    found = dict(cost_trailers(cost(energy_j), Carbon(carbon, 2 * carbon)))

    assert float(found["cinquefoil-energy-j"]) == pytest.approx(energy_j, rel=1e-8)
    assert float(found["cinquefoil-carbon-gco2e"]) == pytest.approx(carbon, rel=1e-8)


@pytest.mark.parametrize("carbon", [None, Carbon(0.8, 1.2)])
def test_a_language_models_receipt_has_tokens_and_the_cost_of_each_generated_one(
    carbon: Carbon | None,
) -> None:
    used = replace(cost(8.0), usage=Usage(30, 4, first_token_s=0.5, token_s=0.02, cached_tokens=16))
    found = read(RECEIPTS.add(b"", used, carbon).body)

    assert (found["input_tokens"], found["output_tokens"]) == (30, 4)
    assert found["cached_tokens"] == 16
    assert (found["first_token_s"], found["token_s"]) == (0.5, 0.02)
    per_token = (found["energy_active_j_per_token"], found["energy_total_j_per_token"])
    assert per_token == (2.0, (8.0 + 9.0) / 4)  # 9 J are idle
    assert found.get("carbon_active_gco2e_per_token") == (None if carbon is None else 0.2)
    assert found.get("carbon_total_gco2e_per_token") == (None if carbon is None else 0.3)


def test_a_prompt_that_was_answered_with_no_token_has_no_cost_per_token() -> None:
    found = read(
        RECEIPTS.add(b"", replace(cost(8.0), usage=Usage(30, 0, 0.0, 0.0)), Carbon(0.8, 1.2)).body
    )

    assert (found["input_tokens"], found["output_tokens"]) == (30, 0)
    assert not {"first_token_s", "token_s", "energy_active_j_per_token"} & found.keys()

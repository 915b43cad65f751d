"""What callers are told of cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference import grpc_service_pb2 as pb
from services.router.domain import Instance
from services.router.receipts import parameters, receipt, trailers

INSTANCE = Instance("h:1", "s", "m", "small", 0.9, 1.0, 4, zone="US-CAL", pue=1.2)


def read(data: bytes) -> dict[str, object]:
    parsed = pb.ModelInferResponse.FromString(data)
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "")
        for key, value in parsed.parameters.items()
    }


@given(st.floats(0, 1e6), st.floats(0, 2000))
def test_carbon_is_energy_times_intensity_times_pue(energy_j: float, intensity: float) -> None:
    found = receipt(INSTANCE, energy_j, 9.0, "model", {"US-CAL": intensity}.get)

    assert found.carbon_gco2e == energy_j / 3.6e6 * intensity * 1.2
    assert read(parameters(INSTANCE, found)) == {
        "model_variant": "small",
        "accuracy": 0.9,
        "energy_j": energy_j,
        "energy_idle_j": 9.0,
        "carbon_gco2e": found.carbon_gco2e,
        "energy_method": "model",
    }


def test_carbon_without_a_known_intensity_is_unknown_not_zero() -> None:
    found = receipt(INSTANCE, 1.0, 0.0, "counter", {"DE": 300.0}.get)

    told = read(parameters(INSTANCE, found))

    assert told["carbon_status"] == "unknown"
    assert "carbon_gco2e" not in told
    assert [key for key, _ in trailers(INSTANCE, found)] == [
        "cinquefoil-variant",
        "cinquefoil-energy-j",
    ]


def test_a_worker_that_says_no_cost_gets_none_invented() -> None:
    assert read(parameters(INSTANCE, None)) == {"model_variant": "small", "accuracy": 0.9}
    assert trailers(INSTANCE, None) == (("cinquefoil-variant", "small"),)

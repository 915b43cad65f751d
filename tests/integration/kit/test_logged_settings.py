"""Settings that a service logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from services.kit.process.service import shown

if TYPE_CHECKING:
    from tests.conftest import Deploy


def test_the_log_has_the_settings_without_their_secrets(deployment: Deploy) -> None:
    """Of a database's password, and of an external server's command line and environment."""
    runtime = {
        "kind": "external",
        "command": ["server", "{port}", "--token=hunter2"],
        "environment": {"TOKEN": "hunter2"},
    }
    variant = {
        "file": "x",
        "accuracy": 0.9,
        "profile": {"kind": "analytic", "gmacs_per_item": 1},
        "runtime": runtime,
    }
    model = {"slo": {"latency_s": 1}, "demand_rps": 1, "variants": {"v": variant}}
    made = deployment(
        {"models": {"m": model}, "planner": {"database": "postgresql://u:s/hunter2@db/plans"}}
    )
    logged = json.dumps(shown(made))

    assert "hunter2" not in logged
    assert made.model_dump(mode="json")["planner"]["listen"] in logged

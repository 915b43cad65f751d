"""`cinquefoil predictor` and `cinquefoil status` against a running predictor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from services.kit.net import free_port
from tests.support.cli.fake_services import cinquefoil
from tests.support.predictor.predictor_service import CAKE, MODEL, observe, predict, predictor

if TYPE_CHECKING:
    from tests.conftest import Deploy


async def test_an_operator_sees_what_is_known_and_has_it_forgotten(
    deployment: Deploy, tmp_path: Path
) -> None:
    section = {
        "listen": f"127.0.0.1:{free_port()}",
        "cache": {"file": str(tmp_path / "cache.sqlite3")},
    }
    deployed = deployment({"predictor": section})
    command = ("--config", tmp_path / "cinquefoil.yaml")
    async with predictor(deployed) as stub:
        await observe(stub, CAKE, 10)
        await predict(stub, CAKE)

        healthy = await cinquefoil("health", "predictor", *command)
        shown = await cinquefoil("predictor", "status", "--json", *command)
        suite = await cinquefoil("status", "--json", *command)
        young = await cinquefoil("predictor", "forget", "--older-than", "7d", *command)
        gone = await cinquefoil("predictor", "forget", "--model", MODEL, *command)

    assert healthy.out == "serving\n"
    (model,) = json.loads(shown.out)
    assert (model["model"], model["cache_entries"]) == (MODEL, "1")
    assert [each["source"] for each in model["sources"]] == ["SOURCE_EXACT"]
    (lengths,) = json.loads(suite.out)["lengths"]
    assert (lengths["predictions"], lengths["cache_hits"], lengths["prompts"]) == (1, 1, 1)
    assert young.out == "forgotten: 0 prompts\n"
    assert gone.out == "forgotten: 1 prompt\n"


async def test_a_deployment_without_a_predictor_says_how_to_have_one(
    deployment: Deploy, tmp_path: Path
) -> None:
    deployment({})
    ended = await cinquefoil("predictor", "status", "--config", tmp_path / "cinquefoil.yaml")

    assert ended.status == 1
    assert "predictor: {}" in ended.err

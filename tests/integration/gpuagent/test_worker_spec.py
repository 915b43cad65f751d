"""A spec that an agent writes for a worker is read by the worker."""

import json
from pathlib import Path
from typing import Final

import pytest

from services.gpuagent.core import worker_spec
from services.gpuagent.core.worker_spec import WorkerSpec
from services.kit.config import Tls
from tests.support.worker.worker_process import flat_costs

PLAIN_CLIENTS: Final = Tls(certificate_file=Path("c.pem"), require_client_certificate=False)


@pytest.mark.parametrize("tls", [None, PLAIN_CLIENTS])
def test_a_worker_spec_survives_its_file(tmp_path: Path, tls: Tls | None) -> None:
    costs = flat_costs(0.01, 0.2, batch_size=4)
    spec = WorkerSpec(
        segment_id="s-1",
        model="m",
        variant="v",
        file=Path("v.onnx"),
        batch_size=4,
        slice_uuid="MIG-1",
        costs=costs,
        listen="127.0.0.1:1",
        ledger=Path("l"),
        slot=3,
        siblings=(3, 4),
        tls=tls,
    )
    spec.save(tmp_path / "s-1.0.json")

    assert worker_spec.load(tmp_path / "s-1.0.json") == spec


def test_a_worker_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    """Keys since added have a default, removed ones are ignored: an upgrade keeps workers."""
    path = tmp_path / "s-1.0.json"
    spec = WorkerSpec(
        segment_id="s-1",
        model="m",
        variant="v",
        file=Path("v.onnx"),
        batch_size=4,
        slice_uuid="MIG-1",
        costs=None,
        tls=PLAIN_CLIENTS,
    )
    spec.save(path)
    written = json.loads(path.read_text())
    for section, name in ((written["tls"], "ip_server_name"), (written, "lent")):
        del section[name]
    written["generative"] = None  # no longer part of it
    path.write_text(json.dumps(written))

    assert worker_spec.load(path) == spec

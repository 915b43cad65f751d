"""What an agent writes for a worker, the worker reads."""

from pathlib import Path

import pytest

from services.gpuagent.core import worker_spec
from services.gpuagent.core.worker_spec import TlsFiles, WorkerSpec
from tests.support.worker.worker_process import flat_costs


@pytest.mark.parametrize("tls", [None, TlsFiles(certificate_file=Path("c.pem"))])
def test_a_worker_spec_survives_its_file(tmp_path: Path, tls: TlsFiles | None) -> None:
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

"""What the agent tells a worker process: a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from services.gpuagent.worker.costs import CostCurve, Costs

ADDRESS_TAKEN: Final = 98
"""Exit status of a worker whose address is in use (EADDRINUSE)."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificates to serve with, PEM; the attributes of `deployment.Tls`."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    require_client_certificate: bool = False


@dataclass(frozen=True, slots=True)
class External:
    """A server of the Open Inference Protocol that computes in a worker's stead.

    Attributes:
        command: Program and arguments that start it; (): it runs already, at `address`.
        environment: Added to the program's environment.
        address: "host:port" of one that runs already.
        model_name: The name that it knows the model by.
        model_version: The version asked of it; "": its choice.
    """

    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    address: str = ""
    model_name: str = ""
    model_version: str = ""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One process of one segment.

    Attributes:
        segment_id, model, variant: What it serves.
        file: ONNX file.
        batch_size: Largest batch, items, >= 1.
        listen: "host:port".
        ledger: The GPU's ledger file.
        slot: Its slot there.
        siblings: Slots of all the segment's processes, its own included.
        slice_uuid: Where it runs.
        costs: What the profile says of batches; None: nothing.
        provider: ONNX Runtime execution provider.
        orphan_timeout_s: It ends when no agent showed life for so long, s.
        log_level: As the deployment's.
        tls: Certificates; None: plaintext.
        external: Who computes; None: this process, with ONNX Runtime.
        charged: The device is simulated: batches take and cost what `costs` says.
    """

    segment_id: str
    model: str
    variant: str
    file: Path
    batch_size: int
    listen: str
    ledger: Path
    slot: int
    siblings: tuple[int, ...]
    slice_uuid: str
    costs: Costs | None
    provider: str = "CPUExecutionProvider"
    orphan_timeout_s: float = 60.0
    log_level: str = "info"
    tls: TlsFiles | None = None
    external: External | None = None
    charged: bool = True

    def save(self, path: Path) -> None:
        """Write the spec so that a reader sees all of it or the one before."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")
        draft.replace(path)


def load(path: Path) -> WorkerSpec:
    """Read a spec that `WorkerSpec.save` wrote."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    data |= {name: Path(data[name]) for name in ("file", "ledger")}
    data["siblings"] = tuple(data["siblings"])
    if data["costs"] is not None:
        data["costs"] = Costs(tuple(_curve(curve) for curve in data["costs"]["curves"]))
    if data["tls"] is not None:
        data["tls"] = _tls(data["tls"])
    if data.get("external") is not None:
        data["external"] = _external(data["external"])
    return WorkerSpec(**data)


def _external(data: dict[str, Any]) -> External:
    pairs = tuple((name, value) for name, value in data["environment"])
    return External(**{**data, "command": tuple(data["command"]), "environment": pairs})


def _curve(data: dict[str, Any]) -> CostCurve:
    return CostCurve(
        data["clock_ratio"],
        tuple(tuple(row) for row in data["latency_s"]),
        tuple(tuple(row) for row in data["energy_j"]),
    )


def _tls(data: dict[str, Any]) -> TlsFiles:
    required = data.pop("require_client_certificate")
    files = {name: Path(value) for name, value in data.items() if value is not None}
    return TlsFiles(**files, require_client_certificate=required)

"""The specification of a worker process: a JSON file that the agent writes."""

from pathlib import Path
from typing import Final

from pydantic import ConfigDict, Field

from services.gpuagent.core.batch_costs import Costs
from services.kit.config import OnnxRuntime, Rpc, Runtime, Slo, TextRuntime, Tls
from services.kit.config.section import Section
from services.kit.whole_file import replacing

ADDRESS_TAKEN: Final = 98
"""Exit status of a worker whose address is in use (EADDRINUSE)."""

NOT_LOADED: Final = "cannot load the model"
"""Event that ends the log of a worker that could not load its model."""


class WorkerEnvironment(Section):
    """Settings common to all workers of a node.

    Attributes:
        orphan_timeout_s: They end themselves when no agent showed life for so long, s.
        log_level: As the deployment's.
        message_bytes: Largest message between routers and workers.
        tls: Certificates that they serve with; None: plaintext.
        node: Name of the node.
        principals: Patterns of identities by role; None: every caller may do everything.
        lent: Patterns of those that agents of several nodes share.
        user: User and group to run as, by number; None: the agent's.
        rpc: What carries their streams.
    """

    orphan_timeout_s: float = 60.0
    log_level: str = "info"
    message_bytes: int = 64 * 2**20
    tls: Tls | None = None
    node: str = ""
    principals: dict[str, tuple[str, ...]] | None = None
    lent: tuple[str, ...] = ()
    user: tuple[int, int] | None = None
    rpc: Rpc = Rpc()


class WorkerSpec(WorkerEnvironment):
    """One process of one segment.

    Attributes:
        segment_id, model, variant: What it serves.
        file: ONNX file, GGUF file, or what an external server makes of it.
        batch_size: Largest batch, items, >= 1.
        slice_uuid: Where it runs.
        costs: Costs of batches by the profile; None: unknown.
        charged: The device is simulated: batches take and cost what `costs` says.
        provider: ONNX Runtime execution provider.
        runtime: What computes: this process, or a server.
        slo: Latency objective of the model's requests; None: none.
        api_key: To show at the runtime's server; read by the worker, and not in the file.
        passes_on: Answers are the requests of a pipeline's next stage: they have every output,
            whichever outputs of the last stage the client requested.
        cores: CPU cores to run on, by number; (): any.
        threads: Threads that compute one batch, where the CPU does.
        listen: "host:port".
        gpu_uuids: What it holds, as CUDA names it: a slice, or whole GPUs.
        ledger: The file of the GPU's shared counters.
        peer_ledgers: Those of its further GPUs, where it holds several.
        slot: Its slot there.
        siblings: Slots of all the segment's processes, its own included.
        sha256: Expected SHA-256 of `file`, hexadecimal; "": not compared.
    """

    model_config = ConfigDict(extra="ignore")  # workers of another version are taken over

    segment_id: str
    model: str
    variant: str
    file: Path
    batch_size: int
    slice_uuid: str
    costs: Costs | None
    charged: bool = True
    provider: str = "CPUExecutionProvider"
    runtime: Runtime = OnnxRuntime()
    slo: Slo | None = None
    api_key: str = Field(default="", exclude=True, repr=False)
    passes_on: bool = False
    cores: tuple[int, ...] = ()
    threads: int = 1
    listen: str = ""
    gpu_uuids: tuple[str, ...] = ()
    ledger: Path = Path()
    peer_ledgers: tuple[Path, ...] = ()
    slot: int = 0
    siblings: tuple[int, ...] = ()
    sha256: str = ""

    @property
    def slots(self) -> int:
        """Requests that may be in flight: its credits."""
        own = self.runtime.slots if isinstance(self.runtime, TextRuntime) else None
        return own or self.batch_size

    def save(self, path: Path) -> None:
        """Write the spec so that a reader sees all of it or the one before."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(path, mode=0o600) as draft:  # it may hold a server's secrets
            draft.write_text(self.model_dump_json(), encoding="utf-8")


def load(path: Path) -> WorkerSpec:
    """Read a spec that `WorkerSpec.save` wrote; what the file lacks has its default."""
    return WorkerSpec.model_validate_json(path.read_bytes())

"""The specification of a worker process: a JSON file that the agent writes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from services.gpuagent.core.batch_costs import Costs
from services.kit.request_cost import Usage
from services.kit.whole_file import replacing

ADDRESS_TAKEN: Final = 98
"""Exit status of a worker whose address is in use (EADDRINUSE)."""

_SCALARS: Final = (bool, int, float, str)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificates to serve with, PEM; the attributes of `deployment.Tls`."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    require_client_certificate: bool = False
    ip_server_name: str = ""


@dataclass(frozen=True, slots=True)
class External:
    """A server that computes in a worker's stead.

    Attributes:
        command: Program and arguments that start it; (): it runs already, at `address`.
        environment: Added to the program's environment.
        environment_file: File of further variables, which are not part of the spec.
        address: "host:port" of one that runs already.
        tls: Certificates to call `address` with; None: plaintext.
        model_name: The name that it knows the model by.
        model_version: The version requested of it; "": its choice.
        api_key_file: File of the key to show at `address`; None: none is shown.
        api_key: What that file has; it is not part of a spec that is saved.
    """

    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    environment_file: Path | None = None
    address: str = ""
    tls: TlsFiles | None = None
    model_name: str = ""
    model_version: str = ""
    api_key_file: Path | None = None
    api_key: str = ""


@dataclass(frozen=True, slots=True)
class Generative:
    """How a language model is run; the attributes of `deployment.GenerativeRuntime`.

    Attributes:
        context_tokens: Of one request: prompt and answer, >= 64; 0: as an external server states.
        slots: Requests that are decoded at a time; 0: the segment's batch size.
        max_tokens: Generated for a request that does not say how many.
        chat: Prompts are a user's words in the model's chat template; otherwise they go as is.
        resource: "package/file" of an installed Python package; "": the worker's file.
        sha256: Expected SHA-256 of `resource`, hexadecimal.
    """

    context_tokens: int = 2048
    slots: int = 0
    max_tokens: int = 256
    chat: bool = True
    resource: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class TextObjectives:
    """What the requests of a language model were promised.

    Attributes:
        latency_s: Time from arrival to the end of the text, s, > 0.
        first_token_s: Time from arrival to the first token, s; 0: any.
        token_s: Mean time between tokens, s; 0: any.
    """

    latency_s: float
    first_token_s: float = 0.0
    token_s: float = 0.0

    def binding_latency_s(self, latency_s: float, usage: Usage) -> float:
        """Return the latency that uses as much of its objective as was used of the scarcest.

        So one count of latencies says how near a text came to any of its objectives.

        Args:
            latency_s: Of the whole text, s.
            usage: When its tokens came.
        """
        first = usage.first_token_s / self.first_token_s if self.first_token_s else 0.0
        between = usage.token_s / self.token_s if self.token_s else 0.0
        return max(latency_s, self.latency_s * max(first, between))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnvironment:
    """What all workers of a node run with.

    Attributes:
        orphan_timeout_s: They end themselves when no agent showed life for so long, s.
        log_level: As the deployment's.
        message_bytes: Largest message between routers and workers.
        tls: Certificates that they serve with; None: plaintext.
        node: Name of the node.
        principals: Patterns of identities by role; None: every caller may do everything.
        lent: Patterns of those that agents of several nodes share.
        user: User and group to run as, by number; None: the agent's.
        transport: What carries their streams; the deployment's `rpc.transport`.
    """

    orphan_timeout_s: float = 60.0
    log_level: str = "info"
    message_bytes: int = 64 * 2**20
    tls: TlsFiles | None = None
    node: str = ""
    principals: dict[str, tuple[str, ...]] | None = None
    lent: tuple[str, ...] = ()
    user: tuple[int, int] | None = None
    transport: str = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec(WorkerEnvironment):
    """One process of one segment.

    Attributes:
        segment_id, model, variant: What it serves.
        file: ONNX file, GGUF file, or what an external server makes of it.
        batch_size: Largest batch, items, >= 1.
        slice_uuid: Where it runs.
        costs: What the profile says of batches; None: nothing.
        charged: The device is simulated: batches take and cost what `costs` says.
        provider: ONNX Runtime execution provider.
        external: Server that computes: of the OpenAI API where the model is a language model, of
            the Open Inference Protocol otherwise. None: this process computes.
        generative: How text is generated; None: the model is no language model.
        objectives: Of a text's tokens; None: it has none, latency is all that counts.
        passes_on: Answers are the requests of a pipeline's next stage: they have every output,
            whichever outputs of the last stage the client requested.
        cores: CPU cores to run on, by number; (): any.
        threads: Threads that compute one batch, where the CPU does.
        listen: "host:port".
        ledger: The file of the GPU's shared counters.
        slot: Its slot there.
        siblings: Slots of all the segment's processes, its own included.
        sha256: Expected SHA-256 of `file`, hexadecimal; "": not compared.
    """

    segment_id: str
    model: str
    variant: str
    file: Path
    batch_size: int
    slice_uuid: str
    costs: Costs | None
    charged: bool = True
    provider: str = "CPUExecutionProvider"
    external: External | None = None
    generative: Generative | None = None
    objectives: TextObjectives | None = None
    passes_on: bool = False
    cores: tuple[int, ...] = ()
    threads: int = 1
    listen: str = ""
    ledger: Path = Path()
    slot: int = 0
    siblings: tuple[int, ...] = ()
    sha256: str = ""

    @property
    def slots(self) -> int:
        """Requests that may be in flight: its credits."""
        return (self.generative and self.generative.slots) or self.batch_size

    def save(self, path: Path) -> None:
        """Write the spec so that a reader sees all of it or the one before."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(path, mode=0o600) as draft:  # it may hold a server's secrets
            draft.write_text(json.dumps(asdict(self), default=str), encoding="utf-8")


def load(path: Path) -> WorkerSpec:
    """Read a spec that `WorkerSpec.save` wrote; what the file lacks has its default."""
    spec: WorkerSpec = _read(WorkerSpec, json.loads(path.read_text(encoding="utf-8")))
    return spec


def _read(hint: Any, data: Any) -> Any:
    """Return the value of a type of the spec that JSON has as `data`."""
    kind, inner = get_origin(hint), get_args(hint)
    if data is None or hint in _SCALARS:
        found = data
    elif kind is UnionType:  # with None, which was read above
        found = _read(inner[0], data)
    elif kind is tuple:
        found = tuple(data if inner[0] in _SCALARS else (_read(inner[0], each) for each in data))
    elif kind is dict:
        found = {key: _read(inner[1], value) for key, value in data.items()}
    elif hint is Path:
        found = Path(data)
    else:
        hints = get_type_hints(hint)
        found = hint(**{name: _read(hints[name], value) for name, value in data.items()})
    return found

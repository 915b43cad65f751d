"""Report of a real GPU, read only, in less than ten minutes: `make gpu-report`.

The session's own provider, answers against the CPU's, energy by counter against integrated power,
latency and energy of networks beside the analytic model's, and an MPS daemon. Where ONNX Runtime
has no GPU build, PyTorch computes. Needs numpy, nvidia-ml-py, structlog and rich, and one of
onnxruntime-gpu (with onnx) and PyTorch.

python -m benchmarks.gpu_report [--json FILE] [--markdown FILE] [--seconds S]
"""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pynvml

from benchmarks import harness
from benchmarks.gpu_report import measure, tokens
from benchmarks.gpu_report.engines import Open, available, onnx_runtime
from benchmarks.gpu_report.measure import Row
from benchmarks.gpu_report.networks import NETWORKS, ConvNet
from benchmarks.gpu_report.transformer import LLAMA_8B, QWEN_32B, Decoder
from benchmarks.harness import Figures, Report, Skipped
from services.gpuagent.core.device_port import Permissions
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.errors import ServiceError

_READ_ONLY = Permissions(granted=False, setting="a report only reads")
_MPS = Path("nvidia-cuda-mps-control")


@dataclass(frozen=True, slots=True)
class Terms:
    """Extent of the measurement.

    Attributes:
        seconds: Time per point, s; the energy comparison takes twice five of them.
        networks: Networks that run.
        decoders: Language models whose steps run, where PyTorch is.
    """

    seconds: float = 4.0
    networks: tuple[ConvNet, ...] = NETWORKS
    decoders: tuple[Decoder, ...] = (LLAMA_8B, QWEN_32B)


def report(terms: Terms, engine: Open | None, name: str, refused: Sequence[str]) -> Report:
    """Measure the first GPU.

    Args:
        terms: Extent of the measurement.
        engine: The engine; None: there is none, and only what NVML shows is reported.
        name: Name of the engine.
        refused: Reasons for which other engines do not compute.

    Raises:
        Skipped: There is no GPU here.
    """
    gpus = NvmlGpus(permissions=_READ_ONLY)
    try:
        gpus.__enter__()
    except ServiceError as error:
        raise Skipped(f"no NVIDIA driver here: {error.message}") from error
    try:
        found = gpus.list()
        if not found:
            raise Skipped("no NVIDIA GPU here")
        before, gpu = measure.settings(gpus), found[0]
        tables = [
            Figures(
                "The machine",
                [
                    {
                        "GPU": gpu.model.product_name,
                        "table": gpu.model.name,
                        "MIG": "on" if gpu.mig_enabled else "off",
                        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
                        "Python": platform.python_version(),
                        "computes": name,
                    }
                ],
                "; ".join(refused),
            ),
            Figures("An MPS control daemon of our own", [measure.mps(gpu.uuid, _MPS)]),
        ]
        if engine is not None:
            tables += _computed(gpus, terms, engine)
        same = measure.settings(gpus) == before
        tables.append(
            Figures("Read only", [{"settings before and after": "equal" if same else "DIFFERENT"}])
        )
        return Report(tables)
    finally:
        gpus.__exit__()


def _computed(gpus: NvmlGpus, terms: Terms, engine: Open) -> list[Figures]:
    gpu, largest = gpus.list()[0], terms.networks[-1]
    tables = []
    try:
        on_cpu = onnx_runtime("CPUExecutionProvider")
        row = measure.agreement(engine, on_cpu, terms.networks[0])
        tables.append(
            Figures("Answers against the CPU's", [row], "TF32 keeps 10 bits of fractions.")
        )
    except (ImportError, RuntimeError):
        pass  # only one of the runtimes is here: nothing to compare with
    images = largest.images(measure.BATCH_SIZES[-1])
    rows = measure.energy(gpus, gpu.uuid, engine(largest), images, 5 * terms.seconds)
    tables.append(Figures("Energy: the counter against power integrated every 20 ms", rows))
    rows = list(measure.profiles(gpus, gpu, terms.networks, engine, terms.seconds))
    note = "Latency with the copies to and from the GPU; energy above idle power, by the counter."
    tables.append(Figures("Networks on the whole GPU, beside the analytic model", rows, note))
    tables += _language(gpus, terms)
    return tables


def _language(gpus: NvmlGpus, terms: Terms) -> list[Figures]:
    gpu = gpus.list()[0]
    rows: list[Row] = []
    try:
        for each in terms.decoders:
            rows += tokens.steps(gpus, gpu, each, terms.seconds)
    except (ImportError, RuntimeError) as error:
        return [Figures("Steps of language models", [{"not measured": str(error)}])]
    note = "PyTorch, bfloat16, a CUDA graph a step, random weights; power above a context's."
    title = "Steps of language models on the whole GPU, beside the formula of plans"
    return [Figures(title, rows, note)] if rows else []


def markdown(tables: Sequence[Figures]) -> str:
    """Return the tables as a page of docs/measurements."""
    parts = ["# A real GPU, read only", "", "`make gpu-report` wrote this page."]
    for each in tables:
        parts += ["", f"## {each.title}", ""]
        parts += [_line(each.rows[0]), _line("---" for _ in each.rows[0])]
        parts += [_line(map(_cell, row.values())) for row in each.rows]
        parts += ["", each.note] if each.note else []
    return "\n".join(parts) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Run the report with the options of the command line."""
    parser = harness.options("gpu_report")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a page here")
    parser.add_argument("--seconds", type=float, default=4.0, help="time per point")
    arguments = parser.parse_args()
    name, engine, refused = available()
    try:
        found = report(Terms(arguments.seconds), engine, name, refused)
    except Skipped as reason:
        print(f"gpu_report: skipped, {reason}")
        return
    harness.publish("gpu_report", found, arguments)
    if arguments.markdown:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(markdown(found.tables))


if __name__ == "__main__":
    main()

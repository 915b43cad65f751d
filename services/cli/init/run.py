"""`cinquefoil init` for models that exist already: reads, measures, and writes the file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Final

import typer
from rich.console import Console
from rich.text import Text

from services.cli.init.devices import Devices, find_devices
from services.cli.init.document import (
    CORE_BATCHES,
    NewModel,
    NewVariant,
    Place,
    deployment,
)
from services.cli.init.hub import Wanted, download, in_order
from services.cli.init.inputs import KnownInputs
from services.cli.init.metric import Function, Metric
from services.cli.init.network import (
    Network,
    Validation,
    examined,
    measured,
    require_one_signature,
)
from services.cli.init.pytorch import Module, export
from services.cli.init.reduced import CALIBRATION, reduce
from services.cli.init.times import write_times
from services.cli.init.triton_repository import RepositoryModel, read_repository
from services.cli.samples import Input, Items, some_items
from services.cli.yaml_file import save
from services.gpuagent.core import cpu_geometry
from services.kit.config.loader import DEFAULT_FILE
from services.kit.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServiceError,
)
from services.kit.process.confined import confined
from services.kit.segment import plain

Say = Callable[[str], object]

PROFILES: Final = "profiles"
"""Folder of measured tables, beside the deployment file."""

_CLEARLY: Final = 0.9
"""Ratio of times below which one variant counts as faster: a busy machine has its noise."""

_TRITON: Final = (
    "tritonserver",
    "--model-repository={folder}",
    "--model-control-mode=explicit",
    "--load-model={name}",
    "--grpc-port={{port}}",
    "--http-port={{port_1}}",
    "--metrics-port={{port_2}}",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `init`, which explains them."""

    files: tuple[Path, ...] = ()
    pytorch: Module | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    hub: str = ""
    repository: Path | None = None
    data: Path | None = None
    precisions: tuple[str, ...] = ()
    metric: Metric | Function | None = None
    name: str = ""
    latency_s: float | None = None
    gmacs: Mapping[str, float] = field(default_factory=dict)

    @property
    def known(self) -> KnownInputs:
        """Knowledge of the inputs."""
        return KnownInputs(self.shapes, self.data)


def init(
    folder: Path, options: Options, control: Callable[[Devices], bool], console: Console
) -> None:
    """Write a deployment file for models that exist.

    Args:
        folder: Where to write it.
        options: The models.
        control: Called where there are GPUs: whether the agent may change them.
        console: Where to report progress.

    Raises:
        AlreadyExists: The folder has a deployment file.
        ServiceError: A model cannot be served as it is; the message names it.
    """
    path = folder / DEFAULT_FILE
    if path.exists():
        raise AlreadyExists(f"{path} exists; `cinquefoil models add` adds a model to it")

    with console.status("Reading the models") as line:

        def say(text: str) -> None:
            text = plain(text)
            line.update(Text(text))
            console.print(text, highlight=False, markup=False, soft_wrap=True)

        place = Place(devices := find_devices(), control=False)
        if options.repository is not None:
            models, place = _imported(options.repository, options, place, say)
        else:
            models = dict([new_model(options, folder, say)])
        if not devices.gpus:
            sizes = place.batch_sizes or CORE_BATCHES
            models = {
                name: timed(name, each, options.data, devices.cores, sizes, folder, say)
                for name, each in models.items()
            }
    if devices.gpus:
        place = Place(devices, control(devices), place.batch_sizes, place.processes)
    folder.mkdir(parents=True, exist_ok=True)
    text = deployment(models, place, folder)
    save(path, text)
    typer.echo(f"wrote {path}; next: {_next(path, next(iter(models)), options.data)}")


def _next(path: Path, model: str, data: Path | None) -> str:
    """Return the commands that serve a deployment file and send a request, as they can be typed."""
    config = "" if path == Path(path.name) else f" --config {quote(str(path))}"
    sent = quote(str(data)) if data else "FILE.npz"
    return f"cinquefoil up{config}, and beside it: cinquefoil infer {model}{config} --input {sent}"


def new_model(options: Options, folder: Path, say: Say) -> tuple[str, NewModel]:
    """Return a model of the files in the options, and its name.

    Args:
        options: The model.
        folder: Where a file goes that has to be written first.
        say: Receives the findings.

    Raises:
        InvalidArgument: Files cannot be variants of one model, or nothing says which is better.
        NotFound: A file does not exist.
    """
    files = _files(options, folder, say)
    try:
        return _of_files(files, options, say)
    except ServiceError:
        if options.pytorch is not None:  # the next try exports again
            files[0].unlink()
        raise


def _of_files(files: Sequence[Path], options: Options, say: Say) -> tuple[str, NewModel]:
    networks = {_name(file.stem): _examined(file, options, say) for file in files}
    if len(networks) < len(files):
        raise InvalidArgument("--onnx: two files have one name, which is their variant's")
    require_one_signature([*networks.values()])
    name = options.name or _name(_hub_name(options.hub) if options.hub else files[0].stem)
    if options.data is None:
        if options.precisions or len(networks) > 1:
            raise InvalidArgument(
                "--data: needed to measure the accuracies of several variants; an .npz file with "
                "an array for each input and `labels`; without labels the last --onnx is the best"
            )
        return name, NewModel(_unmeasured(networks), options.latency_s)
    last = [*networks.values()][-1]
    items = some_items(options.data, [Input(each.name, each.shape) for each in last.inputs], 0, 1)
    compares = items.labels is not None or options.metric is not None
    if not compares and len(networks) == 1 and not options.precisions:
        return name, NewModel(_unmeasured(networks), options.latency_s)
    calibration = _calibration(items.count, options.precisions)
    for variant, network in [*networks.items()]:
        for precision in options.precisions:
            file = reduce(network, precision, options.data, calibration)
            networks[f"{variant}-{precision}"] = _examined(file, options, say)
    require_one_signature([*networks.values()])
    by = _validation(options, items, last, calibration)
    variants = {each: _measured(network, by, say) for each, network in networks.items()}
    _weigh(variants, say)
    return name, NewModel(variants, options.latency_s)


def _unmeasured(networks: Mapping[str, Network]) -> dict[str, NewVariant]:
    return {each: NewVariant.of(network, None) for each, network in networks.items()}


def _validation(options: Options, items: Items, best: Network, first: int) -> Validation:
    """Return how accuracies are measured: by labels, or by the answers of the last network given.

    Raises:
        InvalidArgument: --data is missing, or has no labels that the metric needs.
    """
    data, metric = options.data, options.metric
    labelled = items.labels is not None
    if metric is None:
        metric = Metric.ACCURACY if labelled else Metric.AGREEMENT
    if data is None or (metric == Metric.ACCURACY and not labelled):
        raise InvalidArgument(
            "--metric accuracy: no labels in --data: np.savez(FILE, images=..., labels=...); "
            "--metric agreement needs none"
        )
    alone = labelled and metric != Metric.AGREEMENT
    return Validation(data, metric, None if alone else best, first)


def _weigh(variants: Mapping[str, NewVariant], say: Say) -> None:
    """Name variants that another one beats both ways, and a model that has nothing to save."""
    beaten = 0
    for name, variant in variants.items():
        better = next((other for other, v in variants.items() if _beats(v, variant)), None)
        if better is not None:
            beaten += 1
            say(f"{name}: slower here and no more accurate than {better}: no plan on cores uses it")
    if len(variants) > 1 and beaten == len(variants) - 1:
        say(
            "nothing to save by choosing between these variants on cores: one is the fastest and "
            "the most accurate; a smaller network, or int8 of a larger one, may be cheaper"
        )


def _beats(one: NewVariant, other: NewVariant) -> bool:
    """Return whether a variant is faster than another, and as accurate at least."""
    if not (one.network and other.network and one.accuracy and other.accuracy):
        return False
    faster = one.network.latency_s < _CLEARLY * other.network.latency_s
    return faster and one.accuracy.value >= other.accuracy.value


def timed(  # noqa: PLR0913, PLR0917  # what is measured, where, and who hears of it
    name: str,
    model: NewModel,
    data: Path | None,
    cores: int,
    batch_sizes: Sequence[int],
    folder: Path,
    say: Say,
) -> NewModel:
    """Return a model with tables of the times that its networks take on this machine's cores.

    Args:
        name: The model's name.
        model: The model.
        data: Validation set, whose first item is run; None: random values are.
        cores: That a node has.
        batch_sizes: To measure, ascending.
        folder: Of the deployment file.
        say: Receives the findings.
    """
    variants = dict(model.variants)
    for each, variant in model.variants.items():
        if variant.network is None:
            continue
        path = folder / PROFILES / f"{name}.{each}.{cpu_geometry.name(cores)}.csv"
        write_times(variant.network, data, cores, batch_sizes, path)
        variants[each] = replace(variant, table=path)
    say(f"{name}: times on 1 to {cores} cores are in {folder / PROFILES}")
    return replace(model, variants=variants)


def _files(options: Options, folder: Path, say: Say) -> tuple[Path, ...]:
    if options.pytorch is not None:
        target = folder / f"{_name(options.name or options.pytorch.name)}.onnx"
        return (export(options.pytorch, target, options.known.example),)
    return options.files or _hub_files(options.hub, folder, say)


def _hub_files(text: str, folder: Path, say: Say) -> tuple[Path, ...]:
    """Return the ONNX files of a folder with a model of the hub, or of the hub itself."""
    snapshot = Path(text)
    if not snapshot.is_dir():
        wanted = Wanted.parse(text)
        if wanted is None:
            raise NotFound(f"--hf: no folder {text}, and it is not ORG/NAME[@REVISION][/FILE.onnx]")
        return download(wanted, folder, say)
    there = [*snapshot.glob("*.onnx"), *snapshot.glob("onnx/*.onnx")]
    places = (PurePosixPath(each.relative_to(snapshot)) for each in there)
    files = tuple(snapshot / each for each in in_order(places))
    if not files:
        raise NotFound(
            f"--hf: {snapshot} has no ONNX file; export one: optimum-cli export onnx --model "
            f"{snapshot} {snapshot}/onnx"
        )
    return files


def _hub_name(text: str) -> str:
    wanted = None if Path(text).is_dir() else Wanted.parse(text)
    return Path(wanted.repository if wanted else text).resolve().name


def _calibration(items: int, precisions: Sequence[str]) -> int:
    """Return how many items, the first, are for scales: accuracies are measured on the rest."""
    if "int8" not in precisions:
        return 0
    count = min(CALIBRATION, items // 4)
    if not count:
        raise InvalidArgument("--data: int8 needs at least 4 items, a quarter of them for scales")
    return count


def _examined(file: Path, options: Options, say: Say) -> Network:
    try:
        network = examined(file, options.known)
    except InvalidArgument as error:
        if error.message.startswith(str(file)):
            raise
        raise InvalidArgument(f"{file}: {error.message}") from error
    say(f"{file.name}: {network.gmacs_per_item:.3g} GMACs, {network.latency_s * 1e3:.2g} ms a core")
    for output in network.outputs:
        if not output.is_served:
            say(f"{file.name}: its output {output.name!r} is a {output.datatype}: not served")
    if network.alone:
        say(f"{file.name}: FIXED_BATCH: no batches are formed: {network.alone}")
    return network


def _measured(network: Network, by: Validation, say: Say) -> NewVariant:
    accuracy = measured(network, by)
    name = network.file.name
    if by.metric == Metric.ACCURACY:
        say(f"{name}: {accuracy.value:.4f} right of {accuracy.items} items")
    else:
        say(f"{name}: {accuracy.value:.4f} by {by.description} of {accuracy.items} items")
    if not accuracy.value:
        raise FailedPrecondition(
            f"{network.file}: not one answer is right; check the labels"
            if by.metric == Metric.ACCURACY
            else f"{network.file}: {by.description} is 0; check the labels and --metric"
        )
    return replace(NewVariant.of(network, accuracy), measured_by=by.description)


def _imported(
    folder: Path, options: Options, place: Place, say: Say
) -> tuple[dict[str, NewModel], Place]:
    repository = confined(read_repository, folder, file=folder, reads=[folder], cpu_s=60)
    for name, why in repository.refused.items():
        say(f"{name} is left out: {why}")
    models, kept = {}, []
    for each in repository.models:
        if each.onnx is None and each.name not in options.gmacs:
            say(
                f"{each.name} is left out: nothing here reads the arithmetic of {each.backend}; "
                f"give --gmacs {each.name}=GMACS_PER_ITEM"
            )
            continue
        name = _name(each.name)
        if name in models:
            say(f"{each.name} is left out: {name}, its name in the file, is another model's")
            continue
        try:
            models[name] = _of_repository(each, folder, options, say)
        except ServiceError as error:
            say(f"{each.name} is left out: {error.message}")
            continue
        if each.without:
            say(f"{each.name}: not taken over: {', '.join(each.without)}")
        kept.append(each)
    if not models:
        raise FailedPrecondition(f"{folder}: no model of it can be served")
    sizes = tuple(sorted({1, *(size for each in kept for size in each.batch_sizes)}))
    instances = min(8, max(each.instances for each in kept))
    return models, Place(place.devices, False, sizes if len(sizes) > 1 else (), instances)


def _of_repository(model: RepositoryModel, folder: Path, options: Options, say: Say) -> NewModel:
    limit = model.max_batch
    if model.onnx is not None:
        own = replace(options, shapes={**model.shapes, **options.shapes})
        found = NewVariant.of(_examined(model.onnx, own, say), None)
        limit = min(limit, found.max_batch or limit)
        variant = NewVariant(found.network, None, found.gmacs_per_item, limit)
    else:
        # braces of a name are no fields of the command
        words = {"folder": str(folder.resolve()), "name": model.name}
        words = {key: each.replace("{", "{{").replace("}", "}}") for key, each in words.items()}
        command = [word.format(**words) for word in _TRITON]
        runtime = {"kind": "external", "command": command, "model_name": model.name}
        variant = NewVariant(None, None, options.gmacs[model.name], limit, runtime)
    return NewModel({_name(model.name): variant}, options.latency_s)


def _name(text: str) -> str:
    """Return a name that the deployment file allows."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:63] or "model"

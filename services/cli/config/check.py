"""Checks that types cannot express: files, hardware, and values that contradict each other."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from services.kit.config import Deployment, Model, Profile, TableProfile, Variant
from services.kit.config.carbon_sources import KeyedSource, TraceSource
from services.kit.config.loader import Mistake, document, line_of
from services.kit.errors import InvalidArgument
from services.kit.hardware import gpu_types
from services.kit.profiles.factory import load_profile
from services.local.demo.demo_models import MODEL as TRAINED
from services.local.endpoints import endpoints

_TOLERANCE = 0.002

TRAINS = "`cinquefoil up` trains it"
"""Part of a mistake about a file of the demo's that does not exist yet."""

FETCHES = "`cinquefoil models fetch` brings it"
"""Part of a mistake about a file that has a URI and does not exist yet."""

Where = tuple[str, ...]
Finding = tuple[Where, str]


def check(path: Path, deployment: Deployment, *, files: bool = True) -> list[Mistake]:
    """Return the mistakes in a deployment that its types allow, with their lines.

    Args:
        path: The file it was read from.
        deployment: The deployment.
        files: Whether the files that it names must be on this machine.
    """
    _, tree = document(path)
    findings = [*_gpus(deployment), *_accuracies(deployment), *_objectives(deployment)]
    findings += [
        *_token_objectives(deployment),
        *_addresses(deployment),
        *_disciplines(deployment),
        *_pipelines(deployment),
    ]
    if files:
        findings += [*_sources(deployment), *_networks(deployment), *_tables(deployment)]
        findings += [*_others(deployment), *_certificates(deployment, datetime.now(UTC))]
    mistakes = [Mistake(".".join(where), line_of(tree, where), text) for where, text in findings]
    return sorted(mistakes, key=lambda mistake: (mistake.line, mistake.where))


def _sources(deployment: Deployment) -> Iterator[Finding]:
    for name, zone in deployment.carbon.zones.items():
        for source in zone.sources:
            where: Where = ("carbon", "zones", name, "source")
            if isinstance(source, TraceSource):
                yield from _named((*where, "path"), source.path)
            if isinstance(source, KeyedSource):
                # A key is never read here: another user may run the service.
                yield from _named((*where, "key_file"), source.key_file)


def _variants(deployment: Deployment) -> Iterator[tuple[Where, Model, Variant]]:
    """Yield every variant, and where it is in the file."""
    for model_name, model in deployment.models.items():
        for name, variant in model.variants.items():
            yield ("models", model_name, "variants", name), model, variant


def _networks(deployment: Deployment) -> Iterator[Finding]:
    for where, _, variant in _variants(deployment):
        for key, network in variant.loaded():
            file = deployment.path_of(network)
            if not file.is_file():
                origin = f"; {FETCHES}" if network.uri else _origin(file, variant, deployment)
                yield (*where, *key), f"no file {file}{origin}"


def _others(deployment: Deployment) -> Iterator[Finding]:
    """Check files of single sections."""
    predictor, mqtt = deployment.predictor, deployment.mqtt
    if predictor is not None:
        yield from _named(("predictor", "model"), predictor.model)
    if mqtt is not None:
        yield from _named(("mqtt", "password_file"), mqtt.password_file)
        for key, path in dict(mqtt.tls or {}).items():
            yield from _named(("mqtt", "tls", key), path)
    for key, path in dict(deployment.tls or {}).items():
        if isinstance(path, Path) and "{" not in str(path):  # one machine has not every service's
            yield from _named(("tls", key), path)


def _certificates(deployment: Deployment, now: datetime) -> Iterator[Finding]:
    """Check the certificates on this machine, of any service."""
    if deployment.tls is None:
        return
    try:
        from services.local import pki  # noqa: PLC0415 - an image of one service lacks its library
    except ModuleNotFoundError:
        return
    for identity in pki.identities(deployment):
        found = deployment.tls.of(identity.role, "" if identity.place else identity.name)
        if text := pki.problem(found, now):
            yield ("tls", "certificate_file"), text


def _named(where: Where, file: Path | None) -> Iterator[Finding]:
    if file is not None and not file.is_file():
        yield where, f"no file {file}"


def _origin(file: Path, variant: Variant, deployment: Deployment) -> str:
    """Return the probable origin of a file."""
    if variant.stages:
        return "; `cinquefoil partition` writes a network's stages"
    ours = deployment.models.get(TRAINED)
    trained = ours is not None and any(file == each.file for each in ours.variants.values())
    return f"; {TRAINS}" if trained else ""


def _tables(deployment: Deployment) -> Iterator[Finding]:
    for where, _, variant in _variants(deployment):
        stages = enumerate(variant.stages)
        profiles: list[tuple[Where, Profile | None]] = [
            (("profile",), variant.profile),
            *((("stages", str(index), "profile"), stage.profile) for index, stage in stages),
        ]
        for key, profile in profiles:
            if isinstance(profile, TableProfile):
                yield from _table((*where, *key), profile)


def _table(where: Where, profile: TableProfile) -> Iterator[Finding]:
    """Tables are read, as the planner will; one in Parquet only where Polars is installed."""
    try:
        load_profile(profile)
    except InvalidArgument as error:
        exists = profile.path.is_file()
        yield (*where, "path"), str(error) if exists else f"no file {profile.path}"


def _pipelines(deployment: Deployment) -> Iterator[Finding]:
    """Check that pipelines and models on several GPUs are served: one strategy plans them."""
    strategy = deployment.planner.strategy
    for name, model in deployment.models.items():
        plain = (each for each in model.variants.values() if not each.stages and each.gpus == 1)
        if strategy != "exact" and not any(plain):
            text = f"every variant is a pipeline or on several GPUs; {strategy} plans neither"
            yield ("models", name, "variants"), f"{text}: choose exact"


def _gpus(deployment: Deployment) -> Iterator[Finding]:
    known = gpu_types.names()
    for name, node in deployment.nodes.items():
        for gpu in node.simulated or ():
            if gpu not in known:
                where = ("nodes", name, "simulated")
                yield where, f"no GPU type {gpu!r}; known are {', '.join(known)}"
        makers = {gpu_types.load(gpu).maker for gpu in node.simulated or () if gpu in known}
        if len(makers | {node.maker or "nvidia"} if node.maker else makers) > 1:
            yield ("nodes", name, "simulated"), "the GPUs of a node are of one maker"


def _objectives(deployment: Deployment) -> Iterator[Finding]:
    """Check that a variant can serve each model; only if all GPUs are simulated, hence known."""
    names = {name for node in deployment.nodes.values() for name in node.simulated or ()}
    if not all(node.simulated for node in deployment.nodes.values()) or names - {
        *gpu_types.names()
    }:
        return
    planner = deployment.planner
    try:
        from services.planner.adapters.model_loader import load_models  # noqa: PLC0415
        from services.planner.core.problem.shortfall import unservable  # noqa: PLC0415
        from services.simulator.device import types_together  # noqa: PLC0415

        models = load_models(deployment)
    except (InvalidArgument, ModuleNotFoundError):  # said elsewhere; not installed
        return
    types = types_together(deployment.nodes.values())
    for where, why in unservable(models, types, planner.objective, planner.batch_sizes):
        yield ("models", *where), why


def _token_objectives(deployment: Deployment) -> Iterator[Finding]:
    """Check for objectives of tokens beside a profile without tokens, which no plan can keep."""
    for where, model, variant in _variants(deployment):
        given = [name for name in ("ttft_s", "tpot_s") if getattr(model.slo, name) is not None]
        if given and variant.profile.kind != "language":
            objectives = " and ".join(f"slo.{each}" for each in given)
            text = f"{variant.profile.kind} knows no tokens, so that no plan keeps {objectives}"
            yield (*where, "profile"), f"{text}; use kind: language"


def _accuracies(deployment: Deployment) -> Iterator[Finding]:
    """Check for fractions beside percentages, and percentages above 100."""
    for where, model, variant in _variants(deployment):
        at, stated, measured = (*where, "accuracy"), variant.accuracy, _measured(variant.file)
        if stated > 100:
            yield at, f"{stated:g} is above 100 %"
        elif (other := _other_unit(stated, model)) is not None:
            yield at, f"{stated:g} is {other}"
        if measured is not None and abs(stated - measured) > _TOLERANCE:
            yield at, f"says {stated:g}, but {measured:.4f} was measured"


def _other_unit(stated: float, model: Model) -> str | None:
    """Return what an accuracy is that most of its model's are not; of as many, the fractions."""
    stated_all = [each.accuracy for each in model.variants.values()]
    shares = sum(each <= 1 for each in stated_all)
    if not 0 < shares < len(stated_all):
        return None
    mostly_shares = 2 * shares > len(stated_all)
    if stated <= 1:
        return None if mostly_shares else "a fraction, but others of the model are in %"
    return "in %, but most of the model are fractions" if mostly_shares else None


def _disciplines(deployment: Deployment) -> Iterator[Finding]:
    for name, model in deployment.models.items():
        if model.discipline == "ssjf" and deployment.predictor is None:
            yield (
                ("models", name, "discipline"),
                "ssjf orders requests by predicted length; add a section `predictor`",
            )


def _measured(file: Path) -> float | None:
    try:
        document = json.loads((file.parent / "accuracy.json").read_bytes())
        value = document["accuracy"].get(file.stem)
        return None if value is None else float(value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _addresses(deployment: Deployment) -> Iterator[Finding]:
    """Check that services of one machine share no port, and that no port is 0."""
    taken: dict[str, str] = {}
    # Optional services last: they are to give way to the others.
    optional = ("predictor", "batch")
    for service in sorted(endpoints(deployment), key=lambda each: each.service in optional):
        where, endpoint = service.section, service.endpoint
        owner = ".".join(where)
        for key in ("listen", "metrics"):
            address = getattr(endpoint, key)
            # Containers all listen on the same port of their own: only loopback is one machine.
            if address in taken and address.startswith(("127.", "localhost")):
                yield (*where, key), f"{address} is taken by {taken[address]}"
            elif address:
                taken[address] = f"{owner}.{key}"
        if endpoint.dial.endswith(":0"):
            yield (*where, "address"), "others cannot dial port 0"

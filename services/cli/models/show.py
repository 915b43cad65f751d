"""Shows the models of a deployment: objectives, variants, and tensors."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.text import Text

from inference import grpc_service_pb2 as oip
from services.cli.client import Clients, connected
from services.cli.console.output import print_json, show, table
from services.cli.reasons import PlannerView
from services.kit.config import Model
from services.kit.config.loader import load
from services.kit.errors import NotFound, ServiceError


async def show_list(config: Path, *, as_json: bool) -> None:
    """Print every model of the file, and whether the router serves it."""
    deployment = load(config)
    async with connected(deployment) as clients:
        states = {name: await _state(clients, name) for name in deployment.models}
        lines = await _reasons(clients, states)
    if as_json:
        print_json(
            {
                name: {"state": states[name], **model.model_dump(mode="json")}
                for name, model in deployment.models.items()
            }
        )
        return
    rows = table("", "model", "state", ">variants", "best", ">accuracy", ">p", ">SLO ms", ">req/s")
    for name, model in deployment.models.items():
        best = max(model.variants, key=lambda each: model.variants[each].accuracy)
        rows.add_row(
            name,
            states[name],
            str(len(model.variants)),
            best,
            f"{model.variants[best].accuracy:.4f}",
            f"{model.slo.percentile:g}",
            f"{model.slo.latency_s * 1e3:g}",
            f"{model.demand_rps:g}",
        )
    Console().print(Group(rows, *lines))


async def show_one(config: Path, name: str, *, as_json: bool) -> None:
    """Print a model's variants, and its tensors where a worker has reported them.

    Raises:
        NotFound: The deployment has no such model.
    """
    deployment = load(config)
    model = deployment.models.get(name)
    if model is None:
        raise NotFound(f"no model {name!r} in {config}; it has {', '.join(deployment.models)}")
    async with connected(deployment) as clients:
        state = await _state(clients, name)
        lines = await _reasons(clients, {name: state})
        described = await _described(clients, name)
    tensors = {
        kind: [
            f"{each.name} {each.datatype}{list(each.shape)}" for each in getattr(described, kind)
        ]
        for kind in ("inputs", "outputs")
    }
    value = {"state": state, **tensors, **model.model_dump(mode="json")}
    shown = Group(_rendered(name, model, state, tensors), *lines)
    show(value, lambda: shown, as_json=as_json)


def _rendered(name: str, model: Model, state: str, tensors: dict[str, list[str]]) -> RenderableType:
    rows = table("", "variant", ">accuracy", ">GMACs", "profile", ">max batch", "file")
    for variant, each in model.variants.items():
        rows.add_row(
            variant,
            f"{each.accuracy:.4f}",
            f"{each.profile.gmacs_per_item:.3g}",
            each.profile.kind,
            "any" if each.max_batch is None else str(each.max_batch),
            each.uri or (str(each.file) if each.given else each.runtime.kind),
        )
    objective = f"p{model.slo.percentile:g} <= {model.slo.latency_s * 1e3:g} ms"
    lines = [f"{name}: {state}, {objective}, {model.demand_rps:g} req/s or more"]
    if tensors["inputs"]:
        lines += [f"takes {', '.join(tensors['inputs'])}", f"gives {', '.join(tensors['outputs'])}"]
    return Group(*map(Text, lines), rows)


async def _reasons(clients: Clients, states: Mapping[str, str]) -> list[Text]:
    """Return a line for each model that is not ready: why, and the command that ends it."""
    missing = [name for name, state in states.items() if state != "ready"]
    if not missing:
        return []
    view = await PlannerView.of(clients)
    return [
        Text(f"{name} is {states[name]}: {_why(states[name], view, name)}", style="yellow")
        for name in missing
    ]


def _why(state: str, view: PlannerView, name: str) -> str:
    if state == "unknown":
        return "the router does not answer (run: cinquefoil doctor, or cinquefoil up)"
    if state == "not loaded":
        return "the router has not read it from its deployment file yet (run: cinquefoil status)"
    return view.why_unserved(name)


async def _state(clients: Clients, name: str) -> str:
    try:
        answer = await clients.inference.ModelReady(oip.ModelReadyRequest(name=name))
    except NotFound:
        return "not loaded"
    except ServiceError:
        return "unknown"
    return "ready" if answer.ready else "not ready"


async def _described(clients: Clients, name: str) -> oip.ModelMetadataResponse:
    try:
        return await clients.inference.ModelMetadata(oip.ModelMetadataRequest(name=name))
    except ServiceError:
        return oip.ModelMetadataResponse()

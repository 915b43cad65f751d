"""Doubts about a deployment: values that are allowed, and probably meant in another unit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from services.cli.config.power_doubts import money_doubts, power_doubts
from services.kit.config import Deployment, Model
from services.kit.config.loader import Mistake, line_of
from services.kit.net import is_loopback

_LONG_S: Final = 60.0
"""Longest usual objective of what is no language model; milliseconds are written as more."""

_LONG_TEXT_S: Final = 600.0
_LONG_TOKEN_S: Final = 10.0
_LEAST_PERCENTILE: Final = 1.0
_MOST_GMACS: Final = 1e5
"""Per item. The largest networks of images and speech take about 10,000."""

_MOST_RPS: Final = 1e7

Where = tuple[str, ...]
Finding = tuple[Where, str]


def doubts(path: Path, deployment: Deployment) -> list[Mistake]:
    """Return the doubtful values of a deployment, with their lines.

    Args:
        path: The file it was read from.
        deployment: The deployment.
    """
    tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    findings = [
        finding
        for name, model in deployment.models.items()
        for finding in (
            *_objective(name, model),
            *_deadline(name, model, deployment.router.default_timeout_s),
            *_load(name, model),
            *_arithmetic(name, model),
        )
    ]
    findings += _transport(deployment)
    findings += power_doubts(deployment)
    findings += money_doubts(deployment)
    found = [Mistake(".".join(where), line_of(tree, where), text) for where, text in findings]
    return sorted(found, key=lambda each: (each.line, each.where))


def _transport(deployment: Deployment) -> Iterator[Finding]:
    """Yield that gRPC's C core listens where strangers may connect."""
    if deployment.rpc.transport == "own":
        return
    router = deployment.router
    for name in ("listen", "token_listen"):
        address = getattr(router, name)
        if address and not is_loopback(address):
            text = f"grpcio at router.{name} {address}: floods there refuse or delay others; "
            text += "keep rpc.transport: own, or let only a front such as Envoy reach it"
            yield ("rpc", "transport"), text


def _longest_s(model: Model) -> float:
    """Return the longest usual objective of a model, s."""
    generates = any(each.profile.kind == "language" for each in model.variants.values())
    return _LONG_TEXT_S if generates else _LONG_S


def _objective(name: str, model: Model) -> Iterator[Finding]:
    slo, at = model.slo, ("models", name, "slo")
    limits = {
        "latency_s": _longest_s(model),
        "ttft_s": _LONG_S,
        "tpot_s": _LONG_TOKEN_S,
    }
    for key, most_s in limits.items():
        value_s = getattr(slo, key)
        if value_s is not None and value_s > most_s:
            text = f"{value_s:g} seconds; if milliseconds are meant, write {value_s / 1e3:g}"
            yield (*at, key), text
    if slo.percentile <= _LEAST_PERCENTILE:
        text = f"{slo.percentile:g} of 100; if a share is meant, write {100 * slo.percentile:g}"
        yield (*at, "percentile"), text


def _deadline(name: str, model: Model, default_s: float) -> Iterator[Finding]:
    """Yield that requests without a deadline are refused before they would be late."""
    latency_s, key = model.slo.latency_s, "default_deadline_s"
    deadline_s = getattr(model, key) or default_s
    if deadline_s < latency_s <= _longest_s(model):
        given, setting = getattr(model, key), f"models.{name}.{key}"
        where = ("models", name, key) if given else ("models", name, "slo", "latency_s")
        after = f"{deadline_s:g} s" if given else f"router.default_timeout_s, {deadline_s:g} s"
        text = f"requests without a deadline are given up after {after}, before the objective's "
        yield where, f"{text}{latency_s:g}; write {setting}: {latency_s:g} or more"


def _load(name: str, model: Model) -> Iterator[Finding]:
    if model.demand_rps > _MOST_RPS:
        yield ("models", name, "demand_rps"), f"{model.demand_rps:g} requests per second"


def _arithmetic(name: str, model: Model) -> Iterator[Finding]:
    for variant, each in model.variants.items():
        gmacs = getattr(each.profile, "gmacs_per_item", 0.0)
        if gmacs > _MOST_GMACS:
            at = ("models", name, "variants", variant, "profile", "gmacs_per_item")
            text = f"{gmacs:g} billions; if multiply-accumulates are meant, write {gmacs / 1e9:g}"
            yield at, text

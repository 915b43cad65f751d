"""Names of what runs on a slice and of its state, in a word or two."""

from collections.abc import Callable, Iterable

from cinquefoil.gpuagent.v1.inventory_pb2 import Placement

Part = tuple[str, str, int]
"""Model, variant, and the stage of a variant that is a pipeline, from 0."""

Namer = Callable[[str, str, int], str]


def namer(parts: Iterable[Part]) -> Namer:
    """Return the function that names parts; a pipeline's stages are numbered."""
    pipelines = {(model, variant) for model, variant, stage in parts if stage}

    def name(model: str, variant: str, stage: int) -> str:
        if (model, variant) not in pipelines:
            return f"{model}/{variant}"
        # No break between the word and the number: tables are narrow.
        return f"{model}/{variant} stage\N{NO-BREAK SPACE}{stage}"

    return name


def slice_name(placement: Placement) -> str:
    """Return a slice's name, for example "3g.20gb@4"."""
    return f"{placement.profile}@{placement.start}"


def word(enum_name: str, prefix: str) -> str:
    """Return an enum value's name for people: PLAN_STATE_ACTIVE -> active."""
    return enum_name.removeprefix(prefix).lower()

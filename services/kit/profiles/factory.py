"""Creates profiles from the deployment file's settings."""

from collections.abc import Iterable, Sequence

from services.kit import config
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import Profile
from services.kit.profiles.table import TableProfile


def load_stages(variant: config.Variant) -> tuple[Profile, ...]:
    """Return the profiles of a variant's stages; (): no pipeline. Errors: `load_profile`'s.

    A stage without a profile of its own has its share of the whole's arithmetic and weights; for
    the items of a batch it is taken to need as much memory as the whole does.
    """
    total = sum(stage.share for stage in variant.stages)
    return tuple(
        load_profile(
            stage.profile or _part(variant.profile, stage.share / total),
            clock_sensitivity(variant, index),
        )
        for index, stage in enumerate(variant.stages)
    )


def clock_sensitivity(variant: config.Variant, stage: int | None = None) -> float:
    """Return how the latency of a variant follows the SM clock, 0 (not at all) .. 1.

    Args:
        variant: The variant.
        stage: One of its stages; None: all of it.
    """
    own = variant.stages[stage].clock_sensitivity if variant.stages and stage is not None else None
    given = variant.clock_sensitivity if own is None else own
    if given is not None:
        return given
    match variant.profile:
        case config.LanguageProfile():
            return LanguageProfile(variant.profile).clock_sensitivity
        case _:
            return 1.0


def _part(whole: config.Profile, share: float) -> config.Profile:
    update = {"gmacs_per_item": share * whole.gmacs_per_item}
    if isinstance(whole, config.AnalyticProfile):
        update["memory_mib"] = share * whole.memory_mib
    return whole.model_copy(update=update)


def load_profile(
    settings: config.Profile,
    clock_sensitivity: float = 1.0,
    parallel: config.Parallel | None = None,
) -> Profile:
    """Return the profile that `settings` describe; tables are read from disk.

    Args:
        settings: Settings of the profile.
        clock_sensitivity: The variant's, 0..1; language models and measured tables have their
            own.
        parallel: Division of a language model among the GPUs of a segment.

    Raises:
        InvalidArgument: The table cannot be read or lacks a column.
    """
    match settings:
        case config.AnalyticProfile():
            given = settings.model_dump(exclude={"kind"})
            return AnalyticProfile(**given, clock_sensitivity=clock_sensitivity)
        case config.LanguageProfile():
            return LanguageProfile(settings, parallel)
        case config.TableProfile():
            return TableProfile.read(
                settings.path, gpu=settings.gpu, gmacs_per_item=settings.gmacs_per_item
            )


def latency_shares(stages: Sequence[Profile]) -> tuple[float, ...]:
    """Return each stage's share of the total latency; they sum to 1.

    Where all were measured: on what ran for every stage, batch by batch, added up. Otherwise by
    arithmetic, to which the analytic model's times are proportional.
    """
    tables = [stage for stage in stages if isinstance(stage, TableProfile)]
    weights = _measured(tables) if len(tables) == len(stages) else None
    weights = weights or [_gmacs(stage) for stage in stages]
    return tuple(weight / sum(weights) for weight in weights)


def _measured(tables: Sequence[TableProfile]) -> list[float] | None:
    """Return each table's total latency over the batches that all have; None: there are none."""
    times = [dict(_points(table)) for table in tables]
    common = set.intersection(*(set(each) for each in times))
    return [sum(each[point] for point in common) for each in times] if common else None


def _points(table: TableProfile) -> Iterable[tuple[object, float]]:
    for series, points in table.points.items():
        for point in points:
            if point.latency_s is not None:
                yield (series, point.batch_size), point.latency_s


def _gmacs(stage: Profile) -> float:
    match stage:
        case AnalyticProfile():
            return stage.gmacs_per_item
        case TableProfile():
            return stage.power.gmacs_per_item
        case _:
            return 1.0

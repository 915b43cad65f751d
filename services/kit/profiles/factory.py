"""Creates profiles from the deployment file's settings."""

from __future__ import annotations

from services.kit import config
from services.kit.profiles.core.analytic import AnalyticProfile
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
            stage.profile or _part(variant.profile, stage.share / total), variant.sensitivity(index)
        )
        for index, stage in enumerate(variant.stages)
    )


def _part(whole: config.Profile, share: float) -> config.Profile:
    update = {"gmacs_per_item": share * whole.gmacs_per_item}
    if isinstance(whole, config.AnalyticProfile):
        update["memory_mib"] = share * whole.memory_mib
    return whole.model_copy(update=update)


def load_profile(settings: config.Profile, clock_sensitivity: float = 1.0) -> Profile:
    """Return the profile that `settings` describe; tables are read from disk.

    Args:
        settings: Settings of the profile.
        clock_sensitivity: The variant's, 0..1; measured tables have their own.

    Raises:
        InvalidArgument: The table cannot be read or lacks a column.
    """
    match settings:
        case config.AnalyticProfile():
            return AnalyticProfile(
                gmacs_per_item=settings.gmacs_per_item,
                memory_mib=settings.memory_mib,
                memory_mib_per_item=settings.memory_mib_per_item,
                clock_sensitivity=clock_sensitivity,
            )
        case config.TableProfile():
            return TableProfile.read(
                settings.path, gpu=settings.gpu, gmacs_per_item=settings.gmacs_per_item
            )

"""From a deployment's profile settings to a profile."""

from __future__ import annotations

from services.kit import deployment
from services.kit.profiles.analytic import AnalyticProfile
from services.kit.profiles.profile import Profile
from services.kit.profiles.table import TableProfile


def load_profile(settings: deployment.Profile) -> Profile:
    """Return the profile that `settings` describe; tables are read from disk.

    Raises:
        InvalidArgument: The table cannot be read or lacks a column.
    """
    match settings:
        case deployment.AnalyticProfile():
            return AnalyticProfile(
                gmacs_per_item=settings.gmacs_per_item,
                memory_mib=settings.memory_mib,
                memory_mib_per_item=settings.memory_mib_per_item,
            )
        case deployment.TableProfile():
            return TableProfile.read(
                settings.path, gpu=settings.gpu, gmacs_per_item=settings.gmacs_per_item
            )

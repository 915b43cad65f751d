"""Splits what a GPU drew into entries of the account, hour by hour."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from services.planner.core.accounting.counters import EnergyDrawn, ModelEnergy
from services.planner.core.accounting.entries import EntryKey, Figures, hours
from services.planner.core.accounting.site import EmbodiedCarbon, Site
from services.planner.core.accounting.uncertainty import meter_error

NO_MODEL = ""
"""Model of the entries of idle and unattributed energy."""


def energy_entries(
    drawn: EnergyDrawn, site: Site, board: EmbodiedCarbon
) -> Iterator[tuple[EntryKey, Figures]]:
    """Yield the entries of what one GPU drew, without what BASE would have drawn for models.

    A stretch over several hours is spread evenly. Its carbon is at the intensity in force at its
    end. BASE has the same GPUs powered, so that its idle and unattributed energy are the same.

    Args:
        drawn: What it drew.
        site: Its node.
        board: What it is, and who holds it.
    """
    passed = 0.0
    for hour, share in hours(drawn.start_s, drawn.end_s):
        before, passed = passed, passed + share
        length_s = share * max(drawn.end_s - drawn.start_s, 0.0)
        embodied_gco2e = board.embodied_gco2e_per_s * length_s
        idle_j, unattributed_j = drawn.idle_j * share, drawn.unattributed_j * share
        other_j = idle_j + unattributed_j
        yield (
            EntryKey(hour, site.zone, site.node, NO_MODEL),
            Figures(
                energy_j=other_j,
                idle_j=idle_j,
                unattributed_j=unattributed_j,
                carbon_gco2e=site.carbon_gco2e(other_j),
                idle_gco2e=site.carbon_gco2e(idle_j),
                unattributed_gco2e=site.carbon_gco2e(unattributed_j),
                embodied_gco2e=embodied_gco2e * (1.0 - sum(board.held.values())),
                base_energy_j=other_j,
                base_carbon_gco2e=site.carbon_gco2e(other_j),
            ),
        )
        for model in drawn.models.keys() | board.held.keys():
            used = drawn.models.get(model, ModelEnergy())
            spent_gco2e = site.carbon_gco2e(used.active_j * share)
            held_gco2e = embodied_gco2e * board.held.get(model, 0.0)
            yield (
                EntryKey(hour, site.zone, site.node, model),
                Figures(
                    energy_j=used.active_j * share,
                    carbon_gco2e=spent_gco2e,
                    idle_share_j=used.idle_share_j * share,
                    idle_share_gco2e=site.carbon_gco2e(used.idle_share_j * share),
                    embodied_gco2e=held_gco2e,
                    meter_error_gco2e=-meter_error(drawn.method) * spent_gco2e,
                    intensity_error_gco2e=-site.intensity_error * spent_gco2e,
                    # Whole requests in each hour, and all of them in the end.
                    requests=round(used.requests * passed) - round(used.requests * before),
                ),
            )


def token_entries(
    hour: datetime, tokens: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[EntryKey, Figures]]:
    """Yield the entries of tokens, (input, output) by model; their place is not known."""
    for model, (input_tokens, output_tokens) in tokens.items():
        figures = Figures(input_tokens=input_tokens, output_tokens=output_tokens)
        yield EntryKey(hour, "", "", model), figures

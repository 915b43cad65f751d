"""Write Grafana's dashboards, deploy/grafana/*.json: `make dashboards`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.builders.common import VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import (
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
    VisibilityMode,
)

FOLDER: Final = Path(__file__).parent.parent / "deploy/grafana"
_SOURCE: Final = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
_OF_MODEL: Final = '{model=~"$model"}'
_NAMED: Final = " * on (gpu_uuid) group_left (node, gpu) cinquefoil_gpu_info"
_HEIGHT, _WIDTH = 8, 12


@dataclass(frozen=True)
class Panel:
    """Attributes: title, about, unit (Grafana's), queries (legends by expression)."""

    title: str
    about: str
    unit: str
    queries: dict[str, str]


def per_s(counter: str, by: str = "model", labels: str = _OF_MODEL) -> str:
    """Return the rate of a counter, per second."""
    return f"sum by ({by}) (rate({counter}{labels}[$__rate_interval]))"


def p95(histogram: str, by: str, labels: str = "") -> str:
    """Return the 95th percentile of a histogram."""
    return f"histogram_quantile(0.95, {per_s(f'{histogram}_bucket', f'le, {by}', labels)})"


def saved(window: str) -> str:
    """Return what was saved against BASE over a window, as a share of it."""
    emitted, base = (
        f"sum by (model) (increase(cinquefoil_account_{name}_gco2e_total{_OF_MODEL}[{window}]))"
        for name in ("carbon", "base_carbon")
    )
    return f"1 - {emitted} / ({base} > 0)"


CARBON: Final = (
    Panel(
        "Carbon of requests, and what BASE would have emitted",
        "gCO2e per hour; BASE: each model's best variant on whole GPUs. Idle energy is not part.",
        "none",
        {
            f"{per_s('cinquefoil_account_carbon_gco2e_total')} * 3600": "{{model}}",
            f"{per_s('cinquefoil_account_base_carbon_gco2e_total')} * 3600": "{{model}} BASE",
        },
    ),
    Panel(
        "Saved against BASE",
        "1 - emitted / BASE, over the last hour and day.",
        "percentunit",
        {saved("1h"): "{{model}} hour", saved("1d"): "{{model}} day"},
    ),
)
INTENSITY: Final = Panel(
    "Carbon intensity",
    "gCO2e per kWh, and what is forecast six hours ahead with its 80 % interval.",
    "none",
    {
        "max by (zone) (cinquefoil_carbon_intensity_gco2e_per_kwh)": "{{zone}}",
        'max by (zone, bound) (cinquefoil_carbon_forecast_gco2e_per_kwh{hours_ahead="6"})': (
            "{{zone}} in 6 h, {{bound}}"
        ),
    },
)
POWER: Final = Panel(
    "Power",
    "Of each GPU, as metered.",
    "watt",
    {f"cinquefoil_gpu_power_watts{_NAMED}": "{{node}}/{{gpu}}"},
)
ENERGY: Final = Panel(
    "Energy per request",
    "Active energy of the answers.",
    "joule",
    {
        f"{per_s('cinquefoil_request_energy_joules_total', 'model, variant')} / "
        f"{per_s('cinquefoil_request_duration_seconds_count', 'model, variant')}": (
            "{{model}}/{{variant}}"
        )
    },
)

OVERVIEW: Final = (
    Panel(
        "Latency against its objective",
        "95th percentile from arrival to answer; exemplars are traces.",
        "s",
        {
            p95("cinquefoil_request_duration_seconds", "model", _OF_MODEL): "{{model}} p95",
            f"max by (model) (cinquefoil_slo_latency_seconds{_OF_MODEL})": "{{model}} objective",
        },
    ),
    Panel(
        "Requests",
        "Requests that ended, by status; what was expected, and what the plan provides for.",
        "reqps",
        {
            per_s("cinquefoil_requests_total", "model, status"): "{{model}} {{status}}",
            f"cinquefoil_demand_expected_requests_per_second{_OF_MODEL}": "{{model}} expected",
            f"cinquefoil_demand_provided_requests_per_second{_OF_MODEL}": "{{model}} provided for",
        },
    ),
    Panel(
        "Error budget burned",
        "(bad / all) / (1 - objective); above 1 the budget does not last.",
        "none",
        {
            f"max by (model, window) (cinquefoil_slo_burn_rate{_OF_MODEL})": "{{model}} {{window}}",
        },
    ),
    Panel(
        "Who answers",
        "Shares of the answers by variant.",
        "percentunit",
        {
            f"max by (model, variant) (cinquefoil_share_served_ratio{_OF_MODEL})": (
                "{{model}}/{{variant}}"
            ),
        },
    ),
    *CARBON,
    INTENSITY,
    POWER,
    ENERGY,
    Panel(
        "Plans",
        "Version of the active plan, and its proven optimality gap.",
        "none",
        {"max(cinquefoil_plan_version)": "plan", "cinquefoil_plan_gap_ratio * 100": "gap, %"},
    ),
    Panel(
        "Time to decide",
        "95th percentile, by strategy.",
        "s",
        {p95("cinquefoil_plan_solve_seconds", "strategy"): "{{strategy}}"},
    ),
    Panel(
        "Conditions",
        "What keeps a node, model, plan or zone from working (docs/conditions.md).",
        "none",
        {"cinquefoil_condition == 1": "{{kind}} {{subject}}: {{setting}}"},
    ),
)

ACCOUNT: Final = (
    *CARBON,
    INTENSITY,
    Panel(
        "Intensity against its average",
        "Carbon intensity ratio; below 1 the grid is cleaner than usual.",
        "none",
        {"max by (zone) (cinquefoil_carbon_intensity_ratio)": "{{zone}}"},
    ),
    Panel(
        "Carbon of the fleet",
        "gCO2e per hour of all energy, idle energy and PUE included, and what the plan expects.",
        "none",
        {
            "rate(cinquefoil_fleet_carbon_gco2e_total[$__rate_interval]) * 3600": "metered",
            "cinquefoil_plan_carbon_gco2e_per_hour": "expected",
        },
    ),
    Panel(
        "Carbon of the answers, by variant",
        "gCO2e per hour, as receipts state it.",
        "none",
        {
            f"{per_s('cinquefoil_request_carbon_gco2e_total', 'model, variant')} * 3600": (
                "{{model}}/{{variant}}"
            )
        },
    ),
    ENERGY,
    Panel(
        "Age of the intensity",
        "In grid time; an old value is held or forecast until its source answers.",
        "s",
        {"max by (zone) (cinquefoil_carbon_staleness_seconds)": "{{zone}}"},
    ),
)

GPUS: Final = (
    POWER,
    Panel(
        "Energy of segments",
        "Active power attributed to each segment.",
        "watt",
        {
            per_s("cinquefoil_segment_energy_joules_total", "model, variant, slice"): (
                "{{model}}/{{variant}} on {{slice}}"
            )
        },
    ),
    Panel(
        "Busy slices",
        "Busy workers of each slice, on average; with several processes up to their number.",
        "none",
        {
            f"{per_s('cinquefoil_segment_busy_seconds_total', 'gpu_uuid, slice', '')}{_NAMED}": (
                "{{node}}/{{gpu}} {{slice}}"
            )
        },
    ),
    Panel(
        "Memory in use",
        "Of each slice, as the driver reports it.",
        "bytes",
        {
            f"cinquefoil_slice_memory_used_bytes{_NAMED}": "{{node}}/{{gpu}} {{slice}}",
            f"cinquefoil_slice_memory_bytes{_NAMED}": "{{node}}/{{gpu}} {{slice}} has",
        },
    ),
    Panel(
        "SM clock",
        "Of each GPU, now.",
        "hertz",
        {f"cinquefoil_gpu_sm_clock_hertz{_NAMED}": "{{node}}/{{gpu}}"},
    ),
    Panel(
        "Idle energy",
        "Share of a GPU's power that it draws with nothing running.",
        "percentunit",
        {
            f"{per_s('cinquefoil_gpu_idle_energy_joules_total', 'gpu_uuid', '')} / "
            f"{per_s('cinquefoil_gpu_energy_joules_total', 'gpu_uuid', '')}{_NAMED}": (
                "{{node}}/{{gpu}}"
            )
        },
    ),
    Panel(
        "Error of profiles",
        "Measured over profiled latency or energy, minus 1.",
        "percentunit",
        {"cinquefoil_profile_error_ratio": "{{model}}/{{variant}} {{slice}} {{quantity}}"},
    ),
    Panel(
        "Segments",
        "By state.",
        "none",
        {"sum by (state) (cinquefoil_segments)": "{{state}}"},
    ),
)

_TEXT: Final = '{gen_ai_request_model=~"$model"}'
_BY_VARIANT: Final = "gen_ai_request_model, gen_ai_response_model"
_VARIANT: Final = "{{gen_ai_request_model}}/{{gen_ai_response_model}}"
LANGUAGE: Final = (
    *(
        Panel(
            title, about, "s", {p95(f"gen_ai_server_{name}_seconds", _BY_VARIANT, _TEXT): _VARIANT}
        )
        for title, about, name in (
            (
                "Time to the first token",
                "95th percentile, from arrival.",
                "time_to_first_token",
            ),
            (
                "Time per output token",
                "95th percentile of the answers' means.",
                "time_per_output_token",
            ),
            ("Time of an answer", "95th percentile, from arrival.", "request_duration"),
        )
    ),
    Panel(
        "Tokens",
        "Per second: of prompts, and generated.",
        "none",
        {
            per_s("cinquefoil_input_tokens_total"): "{{model}} prompts",
            per_s("cinquefoil_output_tokens_total"): "{{model}} generated",
        },
    ),
    Panel(
        "Energy per generated token",
        "Active energy of the answers over their tokens.",
        "joule",
        {
            f"{per_s('cinquefoil_request_energy_joules_total', 'model, variant')} / "
            f"{per_s('cinquefoil_output_tokens_total', 'model, variant')}": "{{model}}/{{variant}}"
        },
    ),
    Panel(
        "Requests that wait",
        "In the router, and at external servers.",
        "none",
        {
            f"max by (model) (cinquefoil_pending_requests{_OF_MODEL})": "{{model}} pending",
            f"sum by (model) (cinquefoil_server_waiting_requests{_OF_MODEL})": "{{model}} servers",
        },
    ),
    Panel(
        "KV cache in use",
        "At the fullest external server of each segment.",
        "percentunit",
        {
            f"max by (model, segment) (cinquefoil_server_kv_cache_ratio{_OF_MODEL})": (
                "{{model}} {{segment}}"
            )
        },
    ),
    Panel(
        "Predicted lengths",
        "Predictions per second, by source.",
        "none",
        {per_s("cinquefoil_length_predictions_total", "model, source"): "{{model}} {{source}}"},
    ),
)

_ANSWERS: Final = '{kind="answer"}'

OBSERVED: Final = (
    Panel(
        "Power of what others run",
        "Active power of each workload that Cinquefoil did not start, as its share of the meter.",
        "watt",
        {
            per_s("cinquefoil_observed_energy_joules_total", "workload, model", ""): (
                "{{workload}} {{model}}"
            )
        },
    ),
    Panel(
        "Idle power, and power that no process explains",
        "Of each GPU. Idle: while nothing computes, measured, or else its type's.",
        "watt",
        {
            "max by (gpu_uuid) (cinquefoil_observed_idle_watts)": "{{gpu_uuid}} idle",
            per_s("cinquefoil_observed_unattributed_joules_total", "gpu_uuid", ""): (
                "{{gpu_uuid}} unexplained"
            ),
        },
    ),
    Panel(
        "Tokens per second",
        "Answers' tokens of observed servers, by their own metrics.",
        "none",
        {
            per_s("cinquefoil_observed_tokens_total", "workload, model", _ANSWERS): (
                "{{workload}} {{model}}"
            )
        },
    ),
    Panel(
        "Energy per token",
        "Active energy of a workload over its answers' tokens.",
        "joule",
        {
            f"{per_s('cinquefoil_observed_energy_joules_total', 'workload', '')} / "
            f"{per_s('cinquefoil_observed_tokens_total', 'workload', _ANSWERS)}": ("{{workload}}")
        },
    ),
)

DASHBOARDS: Final = {
    "cinquefoil": ("Cinquefoil", OVERVIEW),
    "cinquefoil-carbon": ("Cinquefoil: carbon account", ACCOUNT),
    "cinquefoil-gpus": ("Cinquefoil: GPUs and slices", GPUS),
    "cinquefoil-observed": ("Cinquefoil: what others run", OBSERVED),
    "cinquefoil-language-models": ("Cinquefoil: language models", LANGUAGE),
}


def texts() -> Iterator[tuple[str, str]]:
    """Yield the name of each dashboard, and its JSON."""
    for name, (title, panels) in DASHBOARDS.items():
        text = JSONEncoder(sort_keys=True, indent=1).encode(_dashboard(name, title, panels))
        yield name, f"{text}\n"


def _dashboard(uid: str, title: str, panels: tuple[Panel, ...]) -> Any:
    made = (
        build.Dashboard(title)
        .uid(uid)
        .tags(["cinquefoil"])
        .editable()
        .refresh("15s")
        .time("now-6h", "now")
        .timezone("utc")
        .link(build.DashboardLink("Dashboards").tags(["cinquefoil"]).type("dashboards"))
        .annotation(_plans())
        .with_variable(
            build.DatasourceVariable("datasource").type("prometheus").label("Data source")
        )
        .with_variable(
            build.QueryVariable("model")
            .label("Model")
            .datasource(_SOURCE)
            .query("label_values(cinquefoil_requests_total, model)")
            .include_all(True)
            .multi(True)
            .current(model.VariableOption(text="All", value="$__all"))
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    )
    for number, panel in enumerate(panels):
        made.with_panel(_panel(number, panel))
    return made.build()


def _plans() -> build.AnnotationQuery:
    return (
        build.AnnotationQuery()
        .name("Plans")
        .enable(True)
        .datasource(_SOURCE)
        .expr("changes(cinquefoil_plan_version[1m]) > 0")
        .icon_color("green")
    )


def _panel(number: int, panel: Panel) -> timeseries.Panel:
    y, x = divmod(number, 2)
    made = (
        timeseries.Panel()
        .id(number + 1)
        .title(panel.title)
        .description(panel.about)
        .unit(panel.unit)
        .datasource(_SOURCE)
        .grid_pos(model.GridPos(h=_HEIGHT, w=_WIDTH, x=x * _WIDTH, y=y * _HEIGHT))
        .fill_opacity(10)
        .show_points(VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for letter, (expr, legend) in zip("ABCDEF", panel.queries.items(), strict=False):
        made.with_target(
            prometheus.Dataquery()
            .ref_id(letter)
            .datasource(_SOURCE)
            .expr(expr)
            .legend_format(legend)
            .exemplar("_bucket" in expr)
        )
    return made


if __name__ == "__main__":
    for name, text in texts():
        (FOLDER / f"{name}.json").write_text(text)

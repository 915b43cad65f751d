"""Prometheus metrics of the planner."""

from prometheus_client import Counter, Gauge, Histogram

LEADS = Gauge("cinquefoil_planner_leads", "1: this planner leads; 0: it stands by, or begins.")
TERM = Gauge("cinquefoil_planner_term", "Term in which it leads, or last led.")
LEASE = Gauge("cinquefoil_planner_lease_seconds", "Time for which it may act without a renewal.")
NODES = Gauge(
    "cinquefoil_nodes", "Nodes of the fleet: connected, cordoned (connected) or away.", ["state"]
)
PLANNED_MODELS = Gauge(
    "cinquefoil_planned_models", "Models that plans are for: not those that others' servers answer."
)
PLAN_VERSION = Gauge("cinquefoil_plan_version", "Version of the active plan; 0: none yet.")
PLAN_STATE = Gauge("cinquefoil_plan_state", "1: state of the newest plan.", ["state"])
PLAN_GAP = Gauge(
    "cinquefoil_plan_gap_ratio",
    "Proven relative optimality gap of the active plan; no sample: nothing is proven.",
    ["strategy"],
)
PLAN_POWER = Gauge("cinquefoil_plan_power_watts", "Power that the active plan expects.")
PLAN_CARBON = Gauge(
    "cinquefoil_plan_carbon_gco2e_per_hour", "Carbon that the active plan expects, per hour."
)
DEMAND_EXPECTED = Gauge(
    "cinquefoil_demand_expected_requests_per_second",
    "Largest load expected when the active plan was made.",
    ["model"],
)
DEMAND_PROVIDED = Gauge(
    "cinquefoil_demand_provided_requests_per_second",
    "Load that the active plan provides for, within the objective.",
    ["model"],
)
PARKED_GPUS = Gauge("cinquefoil_parked_gpus", "GPUs that the active plan leaves empty.")
PARKED_POWER = Gauge(
    "cinquefoil_parked_power_watts", "Idle power of those, which cutting it would save."
)
EMPTY_NODE = Gauge(
    "cinquefoil_empty_node", "1: the active plan leaves every GPU of the node empty.", ["node"]
)
WANTED_GPUS = Gauge(
    "cinquefoil_wanted_gpus",
    "GPUs beyond the fleet that would serve what the active plan does not; types are alternatives.",
    ["gpu"],
)
CONDITION = Gauge(
    "cinquefoil_condition",
    "1: this keeps a node, model, plan or zone from working (docs/conditions.md).",
    ["kind", "subject", "setting"],
)
PLANS = Counter("cinquefoil_plans", "Plans made, by what caused them.", ["reason_kind"])
EVALUATIONS = Counter("cinquefoil_evaluations", "Configurations tried and measured live.")
RESUMED = Counter("cinquefoil_rollouts_resumed", "Rollouts taken up again after a restart.")
CLAMPED = Counter(
    "cinquefoil_reports_clamped",
    "Figures reported by routers and agents that cannot be, cut to what can.",
    ["field"],
)
DROPPED_SHEETS = Counter(
    "cinquefoil_account_sheets_dropped",
    "Sheets of the account that the database refused; their energy is booked again.",
)
FLEET_ENERGY = Counter("cinquefoil_fleet_energy_joules", "Energy of all GPUs, as metered.")
FLEET_CARBON = Counter(
    "cinquefoil_fleet_carbon_gco2e",
    "Carbon of that energy at the intensity then in force, PUE included.",
)
MODEL_CARBON = Counter(
    "cinquefoil_account_carbon_gco2e",
    "Carbon of a model's requests, as the account has it; idle energy is not part of it.",
    ["model"],
)
MODEL_BASE_CARBON = Counter(
    "cinquefoil_account_base_carbon_gco2e",
    "Carbon that BASE would have emitted for the same requests: what was saved is the difference.",
    ["model"],
)
SOLVE_SECONDS = Histogram(
    "cinquefoil_plan_solve_seconds",
    "Time a strategy took to decide.",
    ["strategy"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)

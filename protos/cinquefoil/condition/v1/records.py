"""Messages of `cinquefoil.condition.v1` as frozen values; written by `make protos`."""

from dataclasses import dataclass
from enum import IntEnum


class ConditionKind(IntEnum):
    """Kinds of conditions; docs/conditions.md has a row for each."""

    UNSPECIFIED = 0
    # The node's agent may only read: no plan can use its GPUs.
    CONTROL_OFF = 1
    # The node's agent has not joined, or its stream has ended.
    NODE_AWAY = 2
    # The node's agent has joined and has no GPU to offer.
    GPU_MISSING = 3
    # ONNX Runtime cannot compute on the node's GPUs: its build or a library is missing.
    PROVIDER_MISSING = 4
    # The node has no such file.
    MODEL_FILE_MISSING = 5
    # A variant takes one request at a time, and plans may choose larger batches.
    FIXED_BATCH = 6
    # A worker failed and is started again.
    WORKER_FAILING = 7
    # An agent gave up on a variant; plans leave it out for a while.
    QUARANTINED = 8
    # The disk that holds a service's state is nearly full.
    DISK_FULL = 9
    # No carbon intensity of a node's zone is known.
    ZONE_UNKNOWN = 10
    # The intensity of a zone is held or assumed, since its sources do not answer.
    INTENSITY_STALE = 11
    # No variant of a model is fast enough on any slice of the fleet.
    NO_VARIANT_MEETS_SLO = 12
    # No profile says how a model, or any model on a GPU type, runs there; or nothing fits.
    PROFILE_MISSING = 13
    # The fleet is too small for the demand.
    CAPACITY_MISSING = 14
    # The accuracy floor cannot be kept.
    ACCURACY_FLOOR_MISSED = 15
    # Every variant of a model is a pipeline, which the strategy does not plan.
    STRATEGY_WITHOUT_PIPELINES = 16
    # The rollout of the newest plan failed; the planner tries again.
    ROLLOUT_FAILED = 17
    # The planner could not decide; it tries again.
    UNDECIDED = 18
    # A model would not survive the loss of a GPU or node as it should, or has too few segments.
    REDUNDANCY_MISSING = 19
    # A file of state was damaged, set aside and begun again.
    STATE_DAMAGED = 20
    # The file on the node has another SHA-256 than the deployment file says: workers refuse it.
    MODEL_FILE_DAMAGED = 21
    # A model's texts are usually so long that no batch of them is in time: plans are for shorter ones.
    TEXTS_TOO_LONG = 22
    # A GPU type has no table: its speed and idle power are estimated from what the driver says.
    GPU_ESTIMATED = 23
    # A GPU's driver refuses queries about it, or its meter gives what cannot be.
    GPU_IMPAIRED = 24
    # An operator pinned a plan: no other is made, and a model that it lacks is not served.
    PLAN_HELD = 25
    # An operator froze what runs: only lost capacity is replaced, until a time.
    FROZEN = 26
    # No maintenance window is open: only lost capacity is replaced, until the next one opens.
    MAINTENANCE = 27
    # A model without requests has no segment; its first request starts one.
    PARKED = 60
    # A site's power budget limits the plan: less accuracy or fewer requests than without it.
    POWER_LIMITED = 61
    # A site's power budget is below what its nodes draw without work: nothing is served there.
    POWER_BELOW_IDLE = 62
    # A node's agent keeps a power budget by lower clocks or power limits, beyond what the plan does.
    POWER_CAPPED = 63
    # A server of grid events does not answer: those that are known hold to their end.
    GRID_SERVER_AWAY = 70
    # An event of a server of grid events is not followed: it is not as it should be.
    GRID_EVENT_REFUSED = 71
    # The price of electricity in a zone is not known, or stands for that of an earlier day.
    PRICE_UNKNOWN = 72
    # A carbon budget cannot be kept, or is used up before its period ends.
    CARBON_BUDGET_SHORT = 73

    @classmethod
    def _missing_(cls, value: object) -> "ConditionKind":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """Something that is wrong, and the setting that changes it.

    Attributes:
        kind: What is wrong.
        subject: What it concerns: "node/NAME", "gpu/TYPE", "gpu/UUID", "model/NAME",
            "variant/MODEL/NAME", "zone/NAME", "service/NAME", or "plan".
        sentence: What is wrong, for a person.
        setting: The key of the deployment file that changes it, for example "nodes.node-0.control".
            Empty: none does.
    """

    kind: ConditionKind = ConditionKind.UNSPECIFIED
    subject: str = ""
    sentence: str = ""
    setting: str = ""

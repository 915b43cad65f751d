"""The paper's three applications (SC'23, Table 1): accuracies from its artifact, published work.

One item is one request, as in the artifact's load generator: 8 images, or one question.
"""

import json
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from benchmarks._data import DATA
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.core.profile import BatchCost, SliceShape
from services.planner.core.model import Model, Variant

CLOVER = DATA / "clover"
TOKENS = 384


def _albert(hidden: int, layers: int) -> float:
    """Return GMAC per question of TOKENS tokens: 12 h^2 + 2 h TOKENS per token and layer."""
    return layers * TOKENS * (12 * hidden**2 + 2 * hidden * TOKENS) / 1e9


ACCURACIES = {
    "yolo": {"yolov5l": 49.0, "yolov5x": 50.7, "yolov5x6": 55.0},
    "efficientnet": {"b1": 78.382, "b3": 81.528, "b5": 83.776, "b7": 84.582},
    "albert": {"base": 83.2, "large": 85.2, "xlarge": 86.4, "xxlarge": 89.1},
}
"""COCO mAP, ImageNet top-1, SQuADv2 score, in %: the artifact's, for where it is not at hand."""

GMACS = {
    "yolo": {"yolov5l": 54.55, "yolov5x": 102.85, "yolov5x6": 419.6},
    "efficientnet": {"b1": 0.70, "b3": 1.8, "b5": 9.9, "b7": 37.0},
    "albert": {
        "base": _albert(768, 12),
        "large": _albert(1024, 24),
        "xlarge": _albert(2048, 24),
        "xxlarge": _albert(4096, 12),
    },
}
"""Per image or question. YOLOv5: half of the FLOPs in Ultralytics' table of checkpoints (v6.1);
EfficientNet: Tan and Le, ICML'19, Table 2; ALBERT: from the sizes in Lan et al., ICLR'20, Table 1.
"""

ITEMS = {"yolo": 8, "efficientnet": 8, "albert": 1}
"""Images or questions per request."""

TITLES = {"yolo": "YOLOv5", "efficientnet": "EfficientNet", "albert": "ALBERT"}


@dataclass(frozen=True, slots=True)
class Fit:
    """Corrections of the analytic profile, see `benchmarks.clover.calibration`.

    Attributes:
        overhead_s: Time per request in which the GPU does nothing for it, s.
        time: Factor on the modelled time.
        energy: Factor on the modelled active energy.
    """

    overhead_s: float = 0.0
    time: float = 1.0
    energy: float = 1.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """An analytic profile, corrected; one item is one request."""

    profile: AnalyticProfile
    items: int
    fit: Fit = field(default_factory=Fit)

    @property
    def method(self) -> Literal["model"]:
        """The numbers are modelled."""
        return "model"

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch of requests; see `Profile`."""
        items = self.items * batch_size
        cost = self.profile.batch(shape, items, processes, clock_ratio=clock_ratio)
        if cost is None:
            return None
        latency_s = self.fit.overhead_s * batch_size + self.fit.time * cost.latency_s
        return BatchCost(latency_s, self.fit.energy * cost.energy_j)


def profile(name: str, variant: str, fit: Fit) -> Calibrated:
    """Return the profile of a variant of an application."""
    return Calibrated(AnalyticProfile(GMACS[name][variant]), ITEMS[name], fit)


def model(name: str, fit: Fit, *, demand_rps: float, slo_s: float) -> Model:
    """Return an application as the planner knows it."""
    variants = tuple(
        Variant(variant, accuracy, profile(name, variant, fit))
        for variant, accuracy in accuracies(name).items()
    )
    return Model(name, slo_s, 95.0, demand_rps, variants)


@cache
def accuracies(name: str) -> dict[str, float]:
    """Return the accuracy of each of the paper's variants, %."""
    file = CLOVER / "accuracy" / f"{name}.json"
    if not file.is_file():
        return ACCURACIES[name]
    measured = json.loads(file.read_text())
    return {variant: float(measured[variant]) for variant in ACCURACIES[name]}

"""Serving policies of models, where operators override the deployment file."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import get_args

from services.kit.config import Deployment, Discipline, InstanceChoice
from services.kit.config.models import THRESHOLDS
from services.kit.errors import FailedPrecondition, InvalidArgument, NotFound, ServiceError
from services.kit.telemetry import logs
from services.planner.adapters.store import Store
from services.planner.core.routing_table import ServingPolicy

_log = logs.get("policies")

_DISCIPLINES: Mapping[str, Discipline] = {name: name for name in get_args(Discipline)}
_CHOICES: Mapping[str, InstanceChoice] = {name: name for name in get_args(InstanceChoice)}


class ServingPolicies:
    """Policies set by operators; they survive a restart. Attributes: ordered (by model)."""

    def __init__(self, deployment: Deployment, store: Store) -> None:
        self.ordered: dict[str, ServingPolicy] = {}
        self._deployment = deployment
        self._store = store

    def use(self, deployment: Deployment) -> None:
        """Apply changed models; policies of removed ones are ignored."""
        self._deployment = deployment
        known = self.ordered.items()
        self.ordered = {name: each for name, each in known if name in deployment.models}

    async def restore(self) -> None:
        """Restore policies from before a restart, as far as the deployment still allows them."""
        for model, (discipline, choice, threshold) in (await self._store.policies()).items():
            if model not in self._deployment.models:
                continue
            said = ServingPolicy.of(self._deployment.models[model])
            try:
                self.ordered[model] = self._checked(
                    discipline, choice, threshold or said.intensity_threshold
                )
            except ServiceError as error:
                _log.warning("a policy holds no longer", model=model, why=error.message)

    async def order(
        self,
        model: str,
        discipline: str,
        instance_choice: str,
        intensity_threshold: float | None = None,
        *,
        reset: bool,
    ) -> ServingPolicy:
        """Change a model's policy; return the policy in force.

        Args:
            model: Name of the model.
            discipline: Queue discipline; empty: unchanged.
            instance_choice: Instance choice; empty: unchanged.
            intensity_threshold: CARBONDIS' CIT; None: unchanged.
            reset: Whether to reset everything not given to the deployment's.

        Raises:
            NotFound: No such model.
            InvalidArgument: No such discipline or choice, or an invalid threshold.
            FailedPrecondition: It needs a predictor, and the deployment has none.
        """
        if model not in self._deployment.models:
            known = ", ".join(sorted(self._deployment.models))
            raise NotFound.at("model", f"no model {model!r}; models are {known}")
        said = ServingPolicy.of(self._deployment.models[model])
        now = said if reset else self.ordered.get(model, said)
        wanted = self._checked(
            discipline or now.discipline,
            instance_choice or now.instance_choice,
            now.intensity_threshold if intensity_threshold is None else intensity_threshold,
        )
        ordered = {name: each for name, each in self.ordered.items() if name != model}
        if wanted != said:
            ordered[model] = wanted
        await self._store.policies.save(
            {
                name: (each.discipline, each.instance_choice, each.intensity_threshold)
                for name, each in ordered.items()
            }
        )
        self.ordered = ordered
        _log.info("policy", model=model, **asdict(wanted))
        return wanted

    def _checked(
        self, discipline: str, instance_choice: str, intensity_threshold: float
    ) -> ServingPolicy:
        if discipline == "ssjf" and self._deployment.predictor is None:
            raise FailedPrecondition.at(
                "discipline",
                "ssjf orders by predicted lengths, and the deployment has"
                " no predictor; `predictor: {}` in its file adds one",
            )
        for name, value, known in (
            ("discipline", discipline, _DISCIPLINES),
            ("instance_choice", instance_choice, _CHOICES),
        ):
            if value not in known:
                raise InvalidArgument.at(name, f"must be one of {', '.join(known)}, got {value!r}")
        least, most = THRESHOLDS
        if not least <= intensity_threshold <= most:
            raise InvalidArgument.at(
                "intensity_threshold",
                f"must be within {least:g}..{most:g}, got {intensity_threshold:g}",
            )
        return ServingPolicy(
            _DISCIPLINES[discipline], _CHOICES[instance_choice], intensity_threshold
        )

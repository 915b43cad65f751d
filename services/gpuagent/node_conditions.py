"""What the agent finds wrong with its own machine: files of models, and the disk."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from services.gpuagent.node_place import NodePlace
from services.kit.clock import Clock
from services.kit.conditions import Condition, ConditionKind
from services.kit.config import Deployment, Variant
from services.kit.units import BYTES_PER_MIB

_PERIOD_S: Final = 5.0
_MIN_FREE_MIB: Final = 256


class NodeConditions:
    """Looks every few seconds.

    Attributes:
        found: What is wrong now.
    """

    def __init__(
        self, deployment: Deployment, place: NodePlace, clock: Clock, changed: Callable[[], None]
    ) -> None:
        """Find nothing yet.

        Args:
            deployment: The whole deployment.
            place: The node.
            clock: Time.
            changed: Called when something else is wrong than before.
        """
        self.found: tuple[Condition, ...] = ()
        self._deployment = deployment
        self._place = place
        self._clock = clock
        self._changed = changed

    async def look(self) -> None:
        """Look once."""
        found = await asyncio.to_thread(lambda: tuple(self._find()))
        if found != self.found:
            self.found = found
            self._changed()

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await self._clock.sleep(_PERIOD_S)

    def _find(self) -> Iterator[Condition]:
        name, folder = self._place.name, self._place.folder
        for model_name, model in self._deployment.models.items():
            for variant_name, variant in model.variants.items():
                for file in loaded_files(variant):
                    if not file.is_file():
                        yield Condition(
                            ConditionKind.MODEL_FILE_MISSING,
                            f"variant/{model_name}/{variant_name}",
                            f"{name} has no file {file}",
                            f"models.{model_name}.variants.{variant_name}.file",
                        )
        free_mib = shutil.disk_usage(folder).free // BYTES_PER_MIB
        if free_mib < _MIN_FREE_MIB:
            yield Condition(
                ConditionKind.DISK_FULL,
                f"node/{name}",
                f"less than {_MIN_FREE_MIB} MiB are free on the disk of {folder}",
                f"nodes.{name}.state_dir",
            )


def loaded_files(variant: Variant) -> Iterator[Path]:
    """Yield the files that the workers of a variant load."""
    runtime = variant.runtime
    for stage in variant.stages:
        yield stage.file
    generates = runtime.kind == "generative" and not runtime.resource
    if not variant.stages and (runtime.kind == "onnx" or generates):
        yield variant.file

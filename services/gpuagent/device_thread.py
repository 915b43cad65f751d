"""The GPUs, off the event loop: NVML calls block, and all come from one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Concatenate, ParamSpec, Self, TypeVar

from services.gpuagent.device import NvmlGpus

Result = TypeVar("Result")
Params = ParamSpec("Params")


class DeviceThread:
    """Runs calls on the GPUs in one thread. An async context manager: NVML lives inside."""

    def __init__(self, gpus: NvmlGpus) -> None:
        self._gpus = gpus
        self._thread = ThreadPoolExecutor(1, "nvml")

    async def __aenter__(self) -> Self:
        await self.call(NvmlGpus.__enter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.call(NvmlGpus.__exit__)
        self._thread.shutdown()

    async def call(
        self,
        function: Callable[Concatenate[NvmlGpus, Params], Result],
        *args: Params.args,
        **kwargs: Params.kwargs,
    ) -> Result:
        """Call a function on the GPUs, for example `call(NvmlGpus.create_slice, uuid, placement)`.

        Raises:
            ServiceError: As the function does.
        """
        work = partial(function, self._gpus, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

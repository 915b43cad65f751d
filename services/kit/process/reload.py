"""A service reads its deployment file again: at SIGHUP, or when a link leads to another file."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from services.kit.config import Deployment
from services.kit.config.differences import differences, matching
from services.kit.config.loader import ConfigError, load
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("reload")

_LINK_POLL_S: Final = 2.0

Apply = Callable[[Deployment], Awaitable[None]]
"""Applies a changed deployment, all of it or, with an error, nothing."""


async def _nothing(_deployment: Deployment) -> None:
    """Apply no setting."""


class Reloads:
    """Reloads the deployment file; the service registers the settings that it can apply live.

    The log level is taken over by every service.

    Attributes:
        deployment: As last taken over.
        apply: Takes a changed deployment over.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._started = deployment
        source = deployment.source
        self._loaded_from = "" if source is None else os.path.realpath(source)
        self.apply: Apply = _nothing
        self._live: Collection[str] = ()
        self._used: Collection[str] = ()
        self._serves = asyncio.Event()

    def serve(
        self, used: Collection[str], live: Collection[str] = (), apply: Apply = _nothing
    ) -> None:
        """Register a service's settings and apply changes from now on.

        Args:
            used: Patterns of the settings that it uses, such as "router.*".
            live: Patterns of those that `apply` takes over.
            apply: Takes them over. ConfigError and ServiceError: the file is refused.
        """
        self._used, self._live, self.apply = used, live, apply
        self._serves.set()

    async def follow_signal(self) -> None:
        """Reload at each SIGHUP, until cancelled."""
        loop, requested = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, requested.set)
        try:
            while True:
                await requested.wait()
                requested.clear()
                await self.reload()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    async def follow_link(self, poll_s: float = _LINK_POLL_S) -> None:
        """Reload whenever the file's path, which has a symbolic link in it, leads elsewhere.

        A kubelet replaces a mounted ConfigMap so, at once and whole. A file that is edited in
        place is not followed: it may be half written.

        Args:
            poll_s: Time between two looks, s.
        """
        source = self.deployment.source
        if source is None:
            return
        await self._serves.wait()
        target = self._loaded_from
        while True:
            now = await asyncio.to_thread(os.path.realpath, source)
            if now != target:
                target = now
                await self.reload()
            await asyncio.sleep(poll_s)

    async def reload(self) -> bool:
        """Reload the file and apply its live settings; return whether it was accepted.

        A file that is refused changes nothing.
        """
        source = self.deployment.source
        if source is None:
            _log.warning("nothing to reload: the deployment does not come from a file")
            return False
        try:
            new = await asyncio.to_thread(load, source)
            await self.apply(new)
        except (ConfigError, ServiceError) as error:
            _log.error("the deployment file is refused; nothing changes", why=str(error))
            return False
        taken = matching(differences(self.deployment, new), ("log_level", *self._live))
        since_start = differences(self._started, new)
        restart = {*matching(since_start, self._used)} - {*matching(since_start, self._live)}
        logs.set_level(new.log_level)
        self.deployment = new
        _log.info("reloaded", digest=new.digest, changed=taken)
        if restart:
            _log.warning("these settings need a restart", settings=sorted(restart))
        return True

"""SIGHUP: a service reads its deployment file again."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Collection

from services.kit.config import Deployment
from services.kit.config.differences import differences, matching
from services.kit.config.loader import ConfigError, load
from services.kit.errors import ServiceError
from services.kit.telemetry import logs

_log = logs.get("reload")

Apply = Callable[[Deployment], Awaitable[None]]
"""Takes a changed deployment over, all of it or, with an error, nothing."""


async def _nothing(_deployment: Deployment) -> None:
    """Take nothing over."""


class Reloads:
    """Reads the deployment file again; the service says what it can take over while it runs.

    The log level is taken over by every service.

    Attributes:
        deployment: As last taken over.
        apply: Takes a changed deployment over.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._started = deployment
        self.apply: Apply = _nothing
        self._live: Collection[str] = ()
        self._used: Collection[str] = ()

    def serve(
        self, used: Collection[str], live: Collection[str] = (), apply: Apply = _nothing
    ) -> None:
        """Name what a service uses, and take changes over from now on.

        Args:
            used: Patterns of the settings that it uses, such as "router.*".
            live: Patterns of those that `apply` takes over.
            apply: Takes them over. ConfigError and ServiceError: the file is refused.
        """
        self._used, self._live, self.apply = used, live, apply

    async def follow_signal(self) -> None:
        """Reload at each SIGHUP, until cancelled."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGHUP, asked.set)
        try:
            while True:
                await asked.wait()
                asked.clear()
                await self.reload()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    async def reload(self) -> bool:
        """Read the file again, and take over what can be; return whether it was accepted.

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

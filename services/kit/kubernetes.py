"""The API server of Kubernetes: objects are listed and watched, created and patched.

Source: Kubernetes, "API concepts" (efficient detection of changes; server-side apply is not used).
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import aiohttp
from pydantic_core import from_json

from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.net import address_of
from services.kit.rpc.reconnect import ConnectionLost, Reconnector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, the API server's authority and its namespace."""

MOST_OBJECTS: Final = 4096
"""Most objects of a query; further ones are left out."""

AWAY: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError, LookupError, TypeError)
"""Errors of a call while the API server is away, or says something else than its objects."""

_WATCH_S: Final = 300
_SILENT_S: Final = 150
"""Time without a line after which a watch is given up: bookmarks come about once a minute."""

_CALL_S: Final = 10.0
_LINE_BYTES: Final = 2**21
_GONE: Final = 410
_MERGE: Final = "application/merge-patch+json"

Objects = Mapping[str, Mapping[str, Any]]


class Refused(ConnectionLost):
    """The API server refuses a call. Attributes: status (of HTTP)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Query(NamedTuple):
    """Objects to follow. Attributes: path, labels (a selector; "": all of them)."""

    path: str
    labels: str = ""


class Cluster:
    """The API server, as a pod reaches it.

    Args:
        session: Connections.
        url: "https://host:port".
        folder: With `token`, which is read at each request, and `namespace`.
        rights: Values of the chart that give this token its rights, for messages.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, folder: Path, rights: str) -> None:
        self._session, self._url, self._folder, self._rights = session, url, folder, rights

    @classmethod
    @asynccontextmanager
    async def reached(
        cls, setting: str, rights: str, folder: Path = MOUNT, url: str = ""
    ) -> AsyncIterator[Self]:
        """Keep connections while the block runs.

        Args:
            setting: What needs the API server, for messages.
            rights: Values of the chart that give this token its rights, for messages.
            folder: The ServiceAccount's folder.
            url: Of the API server; "": as the environment of a pod has it.

        Raises:
            FailedPrecondition: This is no pod, or it has no token.
        """
        if not url:
            host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host or not (folder / "token").exists():
                raise FailedPrecondition(
                    f"{setting}: needs a pod in a cluster, with the token of a ServiceAccount at"
                    f" {folder}"
                )
            url = f"https://{address_of(host, int(port))}"
        context: ssl.SSLContext | bool = True
        if url.startswith("https"):
            context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        connector = aiohttp.TCPConnector(ssl=context)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_SILENT_S)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, read_bufsize=_LINE_BYTES
        ) as session:
            yield cls(session, url, folder, rights)

    @property
    def namespace(self) -> str:
        """The pod's own. Reads a file."""
        return (self._folder / "namespace").read_text().strip()

    async def follow(
        self, query: Query, use: Callable[[Objects], None], connected: Callable[[], None]
    ) -> None:
        """Report a query's objects, by UID: now and after each change, until the watch ends.

        The API server ends each watch after a while: then the objects are to be listed again.

        Args:
            query: The query.
            use: Takes the objects.
            connected: Called once they are listed.

        Raises:
            ConnectionLost: It refuses, or does not know the version any more.
        """
        found = await self.get(query.path, labelSelector=query.labels, limit=str(MOST_OBJECTS))
        objects = {_key(each): each for each in found["items"]}
        connected()
        use(objects)
        given = {
            "watch": "1",
            "labelSelector": query.labels,
            "resourceVersion": found["metadata"]["resourceVersion"],
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        async with self._session.get(self._at(query.path, given), headers=self._token()) as answer:
            self._check(answer, query.path)
            while line := await answer.content.readline():
                event = from_json(line)  # a ValueError where it is nested deep
                kind, changed = event["type"], event["object"]
                if kind == "ERROR":
                    message = changed.get("message", "")
                    raise ConnectionLost(f"{changed.get('code', _GONE)}: {message}")
                if kind == "DELETED":
                    objects.pop(_key(changed), None)
                elif kind in ("ADDED", "MODIFIED") and (
                    len(objects) < MOST_OBJECTS or _key(changed) in objects
                ):
                    objects[_key(changed)] = changed
                if kind != "BOOKMARK":
                    use(objects)

    async def get(self, path: str, **given: str) -> Any:
        """Return an object, or a list.

        Raises:
            Refused: The API server refuses; its `status` is 404 where there is no such object.
        """
        return await self._call("GET", path, given, None, {})

    async def create(self, path: str, body: Mapping[str, Any]) -> Any:
        """Create an object below the path of its kind; return it. Raises as `get`."""
        return await self._call("POST", path, {}, body, {"Content-Type": "application/json"})

    async def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Merge values into an object, or into its subresource; return it. Raises as `get`.

        With `metadata.resourceVersion` in `body` an object that others changed since is refused
        with status 409.
        """
        return await self._call("PATCH", path, {}, body, {"Content-Type": _MERGE})

    async def _call(
        self,
        method: str,
        path: str,
        given: Mapping[str, str],
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
    ) -> Any:
        async with self._session.request(
            method,
            self._at(path, given),
            headers={**self._token(), **headers},
            data=None if body is None else json.dumps(body),
            timeout=aiohttp.ClientTimeout(total=_CALL_S),
        ) as answer:
            self._check(answer, path)
            return from_json(await answer.read())

    def _at(self, path: str, given: Mapping[str, str]) -> str:
        return f"{self._url}{path}?{urlencode(given)}"

    def _token(self) -> Mapping[str, str]:
        token = self._folder / "token"
        return {"Authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else {}

    def _check(self, answer: aiohttp.ClientResponse, path: str) -> None:
        """Raise Refused where the API server refuses, with what it would take."""
        status = answer.status
        if status in (401, 403):
            message = (
                f"{status} for {answer.method} {path}: this ServiceAccount lacks the right,"
                f" which the chart gives it for {self._rights}"
            )
            raise Refused(status, message)
        if status == 404:
            message = f"404 at {path}: there is no such object, or its CRD is not installed"
            raise Refused(status, message)
        if status >= 400:
            raise Refused(status, f"HTTP {status} for {answer.method} {path}")


def reconnector(name: str, clock: Clock) -> Reconnector:
    """Return what follows the API server over its absences.

    Args:
        name: Of what is followed, for the log.
        clock: Time.
    """
    return Reconnector(f"kubernetes: {name}", clock, errors=AWAY)


def _key(found: Mapping[str, Any]) -> str:
    return str(found["metadata"].get("uid") or found["metadata"]["name"])

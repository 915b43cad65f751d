"""The API server of Kubernetes: objects are listed and watched, created and patched.

Source: Kubernetes, "API concepts" (efficient detection of changes; server-side apply is not used).
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from urllib.parse import urlencode

import aiohttp
from pydantic_core import from_json, to_json

from services.kit.clock import Clock
from services.kit.errors import FailedPrecondition
from services.kit.net import address_of
from services.kit.rpc.reconnect import ConnectionLost, Reconnector
from services.kit.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_log = logs.get("kubernetes")

MOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, the API server's authority and its namespace."""

MOST_OBJECTS: Final = 4096
"""Most objects of a query; younger ones are left out."""

MOST_WEIGHT: Final = 16 * 2**20
"""Most memory of a query's objects, bytes (estimated): what is over is left out as well."""

_MOST_LISTED: Final = 4 * MOST_OBJECTS
_PAGE: Final = 64
"""Objects of a page of a list; fewer where they are large."""

_ANSWER_BYTES: Final = 2**22
"""Of one answer: twice the 1.5 MiB that etcd takes of an object."""

_VALUE_BYTES: Final = 64
"""Memory that a value in a document takes beside its text."""

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


class TooLarge(Refused):
    """An answer has more bytes than are read."""


class Query(NamedTuple):
    """Objects to follow.

    Attributes:
        path: Of their collection.
        labels: A selector; "": all of them.
        keep: Returns what is needed of an object; the rest takes no memory.
    """

    path: str
    labels: str = ""
    keep: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda found: found


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
        known = _Known(query)
        given = {
            "watch": "1",
            "labelSelector": query.labels,
            "resourceVersion": await self._list(query, known),
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_S),
        }
        connected()
        use(known.objects)
        async with self._session.get(self._at(query.path, given), headers=self._token()) as answer:
            self._check(answer, query.path)
            while line := await answer.content.readline():
                event = from_json(line)  # a ValueError where it is nested deep
                kind, changed = event["type"], event["object"]
                if kind == "ERROR":
                    message = changed.get("message", "")
                    raise ConnectionLost(f"{changed.get('code', _GONE)}: {message}")
                if kind == "DELETED":
                    known.remove(changed)
                elif kind in ("ADDED", "MODIFIED"):
                    known.add((changed,), watched=True)
                if kind != "BOOKMARK":
                    use(known.objects)

    async def _list(self, query: Query, known: _Known) -> str:
        """Add a query's objects page by page, each bounded before it is read; return its version.

        Raises:
            Refused: It refuses, or one object has more than 4 MiB.
        """
        given = {"labelSelector": query.labels, "limit": str(_PAGE), "continue": ""}
        for _ in range(_MOST_LISTED):
            try:
                found = await self.get(query.path, **given)
            except TooLarge:
                if given["limit"] == "1":
                    raise
                given["limit"] = str(int(given["limit"]) // 4 or 1)
                continue
            known.add(found["items"])
            given["continue"] = found["metadata"].get("continue") or ""
            if not given["continue"] or known.listed >= _MOST_LISTED:
                break
        return str(found["metadata"]["resourceVersion"])

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
            return from_json(await _body(answer, path))

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


class _Known:
    """Objects of a query by UID, the oldest ones that there is room for.

    Attributes:
        objects: What is kept of them.
        listed: Objects that were added, those without room included.
    """

    def __init__(self, query: Query) -> None:
        self.objects: dict[str, Mapping[str, Any]] = {}
        self.listed = 0
        self._query = query
        self._weights: dict[str, int] = {}

    def add(self, found: Iterable[Mapping[str, Any]], *, watched: bool = False) -> None:
        """Add objects, or what they have become.

        Args:
            found: The objects.
            watched: They have changed: where there is no room, they go first, else the youngest.
        """
        keys = set[str]()
        for each in found:
            key, kept = _key(each), self._query.keep(each)
            keys.add(key)
            self.objects[key], self._weights[key] = kept, _weight(kept)
        self.listed += len(keys)
        if len(self.objects) > MOST_OBJECTS or sum(self._weights.values()) > MOST_WEIGHT:
            self._shrink(keys if watched else set())

    def remove(self, found: Mapping[str, Any]) -> None:
        """Remove an object that was deleted."""
        key = _key(found)
        self.objects.pop(key, None)
        self._weights.pop(key, None)

    def _shrink(self, changed: set[str]) -> None:
        room, count = MOST_WEIGHT, 0
        for key in sorted(self.objects, key=lambda key: (key in changed, _age(self.objects[key]))):
            weight = self._weights[key]
            if count < MOST_OBJECTS and weight <= room:
                room, count = room - weight, count + 1
                continue
            _log.warning(
                "an object is left out: there are too many, or too large ones",
                path=self._query.path,
                object=str(self.objects[key]["metadata"].get("name", ""))[:253],
                most_objects=MOST_OBJECTS,
                most_bytes=MOST_WEIGHT,
            )
            del self.objects[key], self._weights[key]


async def _body(answer: aiohttp.ClientResponse, path: str) -> bytes:
    """Return an answer's body, of which no more is taken than may come.

    Raises:
        TooLarge: It has more than 4 MiB.
    """
    pieces, size = list[bytes](), 0
    async for piece in answer.content.iter_any():
        size += len(piece)
        if size > _ANSWER_BYTES:
            raise TooLarge(answer.status, f"{path}: an answer of more than {_ANSWER_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _weight(found: Mapping[str, Any]) -> int:
    text = to_json(found)
    return len(text) + _VALUE_BYTES * sum(map(text.count, (b",", b"[", b"{")))


def _age(found: Mapping[str, Any]) -> tuple[str, str]:
    metadata = found["metadata"]
    return str(metadata.get("creationTimestamp", "")), str(metadata.get("name", ""))


def _key(found: Mapping[str, Any]) -> str:
    return str(found["metadata"].get("uid") or found["metadata"]["name"])

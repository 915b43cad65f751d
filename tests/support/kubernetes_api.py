"""An API server of Kubernetes, as its "API concepts" say: for what nodes and pods need not exist.

Objects have versions and generations; watches replay from a version, end with 410 where it was
compacted, and have bookmarks; `status` and `scale` are subresources; a token has listed rights.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer

TOKEN = "secret"  # noqa: S105 - of a test's ServiceAccount
_PATH = re.compile(
    r"/apis?(?:/(?P<group>[\w.-]+\.[\w.-]+|apps))?/v\w+(?:/namespaces/(?P<namespace>[\w-]+))?"
    r"/(?P<resource>\w+)(?:/(?P<name>[\w.-]+)(?:/(?P<sub>status|scale))?)?"
)
_SCALED = {"deployments", "statefulsets", "leaderworkersets"}
"""Resources with the subresource `scale`: those of apps/v1, and LeaderWorkerSet's CRD has it."""

_VERBS = {"POST": "create", "PATCH": "patch"}

Object = dict[str, Any]


class KubernetesApi:
    """Objects by path of their collection, and by name.

    Attributes:
        objects: Objects.
        full: Names of objects that have no room for a status.
        conflicts: Patches with a version that are yet refused, as if others were faster.
        rights: Verb and resource, such as ("patch", "models/status"); None: everything.
        calls: Verb and resource of each call.
        pages: Objects of each answer to a list.
        url: Where it is reached.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {}
        self.full: set[str] = set()
        self.conflicts = 0
        self.rights: set[tuple[str, str]] | None = None
        self.calls: list[tuple[str, str]] = []
        self.selectors: list[str] = []
        self.pages: list[int] = []
        self.url = ""
        self._version, self._compacted = 1, 0
        self._log: list[tuple[int, str, str, Object]] = []
        self._changed, self._ended = asyncio.Condition(), 0

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        """Serve while the block runs."""
        api, app = cls(), web.Application()
        app.router.add_route("*", "/{path:.*}", api._handle)
        server = TestServer(app)
        await server.start_server()
        api.url = f"http://127.0.0.1:{server.port}"
        try:
            yield api
        finally:
            await api.end_watches()
            await server.close()

    # ---- as a person with kubectl ----

    async def apply(self, collection: str, found: Object) -> Object:
        """Create an object, or replace what was given of it."""
        name = found["metadata"]["name"]
        if name in self.objects.get(collection, {}):
            return await self._merge(collection, name, found, "")
        self._version += 1
        made = {
            **found,
            "metadata": {
                "uid": f"{name}-{self._version}",
                "creationTimestamp": f"2026-01-01T00:00:{self._version % 60:02d}Z",
                "generation": 1,
                **found["metadata"],
            },
        }
        await self._note("ADDED", collection, name, made)
        return made

    async def delete(self, collection: str, name: str) -> None:
        """Delete an object."""
        self._version += 1
        await self._note("DELETED", collection, name, self.objects[collection].pop(name))

    async def end_watches(self) -> None:
        """End every watch, as the API server does after a while."""
        async with self._changed:
            self._ended += 1
            self._changed.notify_all()

    async def compact(self) -> None:
        """Forget all versions up to now: a watch that begins at one of them gets 410."""
        self._version += 1
        self._compacted = self._version

    # ---- calls ----

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        match = _PATH.fullmatch(request.path)
        if match is None:
            return _refused(404, "no such path")
        resource, name, sub = match["resource"], match["name"], match["sub"]
        collection = request.path[: match.end("resource")]
        watches = request.query.get("watch") == "1"
        verb = _VERBS.get(request.method, "watch" if watches else "get" if name else "list")
        right = verb, f"{resource}/{sub}" if sub else resource
        self.calls.append(right)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _refused(401, "Unauthorized")
        if self.rights is not None and right not in self.rights:
            return _refused(403, f"cannot {verb} {right[1]}")
        if watches:
            return await self._watch(request, collection)
        if name is None:
            return await self._collection(request, collection, verb)
        return await self._object(request, collection, name, sub or "")

    async def _collection(
        self, request: web.Request, collection: str, verb: str
    ) -> web.StreamResponse:
        known = self.objects.get(collection, {})
        if verb == "create":
            body = await request.json()
            generated = f"{body['metadata'].get('generateName', '')}{self._version}"
            body["metadata"].setdefault("name", generated)
            if body["metadata"]["name"] in known:
                return _refused(409, "AlreadyExists")
            return web.json_response(await self.apply(collection, body), status=201)
        selector = request.query.get("labelSelector", "")
        self.selectors.append(selector)
        items = [each for _, each in sorted(known.items()) if _selected(each, selector)]
        first, limit = int(request.query.get("continue") or 0), int(request.query.get("limit", "0"))
        page = items[first : first + limit] if limit else items
        self.pages.append(len(page))
        metadata = {"resourceVersion": str(self._version)}
        if first + len(page) < len(items):
            metadata["continue"] = str(first + len(page))
        return web.json_response({"metadata": metadata, "items": page})

    async def _object(
        self, request: web.Request, collection: str, name: str, sub: str
    ) -> web.StreamResponse:
        found = self.objects.get(collection, {}).get(name)
        if found is None or (sub == "scale" and collection.rpartition("/")[2] not in _SCALED):
            return _refused(404, "NotFound")
        if request.method == "PATCH":
            if request.content_type != "application/merge-patch+json":
                return _refused(415, request.content_type)
            body = await request.json()
            if sub == "status" and name in self.full:
                return _refused(413, "etcdserver: request is too large")
            expected = body.get("metadata", {}).pop("resourceVersion", None)
            late, self.conflicts = self.conflicts > 0, max(self.conflicts - 1, 0)
            if expected is not None and (late or expected != found["metadata"]["resourceVersion"]):
                return _refused(409, "Conflict")
            found = await self._merge(collection, name, body, sub)
        return web.json_response(_scale_of(found) if sub == "scale" else found)

    async def _merge(self, collection: str, name: str, body: Object, sub: str) -> Object:
        before = self.objects[collection][name]
        if sub == "status":
            body = {"status": body.get("status")}
        elif sub == "scale":
            body = {"spec": {"replicas": body["spec"]["replicas"]}}
        elif collection.endswith("/models"):  # whose CRD has the subresource status
            body = {key: value for key, value in body.items() if key != "status"}
        after: Object = merged(before, body)
        if after == before:
            return before
        self._version += 1
        metadata = dict(after["metadata"])
        if after.get("spec") != before.get("spec"):
            metadata["generation"] = metadata.get("generation", 1) + 1
        after["metadata"] = metadata
        await self._note("MODIFIED", collection, name, after)
        return after

    async def _note(self, kind: str, collection: str, name: str, found: Object) -> None:
        found["metadata"] = {**found["metadata"], "resourceVersion": str(self._version)}
        if kind != "DELETED":
            self.objects.setdefault(collection, {})[name] = found
        async with self._changed:
            self._log.append((self._version, kind, collection, found))
            self._changed.notify_all()

    async def _watch(self, request: web.Request, collection: str) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)

        async def send(kind: str, found: Mapping[str, Any]) -> None:
            await answer.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")

        since, ended = int(request.query["resourceVersion"]), self._ended
        if since < self._compacted:
            await send("ERROR", {"code": 410, "reason": "Expired", "message": "too old"})
            return answer
        if request.query.get("allowWatchBookmarks") == "true":
            await send("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})
        while self._ended == ended:
            for version, kind, where, found in list(self._log):
                selected = _selected(found, request.query.get("labelSelector", ""))
                if version > since and where == collection and selected:
                    since = version
                    await send(kind, found)
            async with self._changed:
                if (
                    not any(
                        version > since and where == collection
                        for version, _, where, _ in self._log
                    )
                    and self._ended == ended
                ):
                    await self._changed.wait()
        return answer


def account(folder: Path, namespace: str = "models") -> Path:
    """Return the folder of a ServiceAccount."""
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "namespace").write_text(namespace)
    return folder


def _scale_of(found: Object) -> Object:
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "Scale",
        "metadata": {"name": found["metadata"]["name"]},
        "spec": {"replicas": found["spec"].get("replicas", 1)},
        "status": {"replicas": found.get("status", {}).get("replicas", 0)},
    }


def _selected(found: Mapping[str, Any], selector: str) -> bool:
    labels = found["metadata"].get("labels", {})
    return all(
        labels.get(each.partition("=")[0]) == each.partition("=")[2]
        for each in selector.split(",")
        if each
    )


def merged(below: Any, above: Any) -> Any:
    """RFC 7396: null removes."""
    if not isinstance(above, dict):
        return above
    found = dict(below) if isinstance(below, dict) else {}
    for key, value in above.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": status, "message": message}, status=status)

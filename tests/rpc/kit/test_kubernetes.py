"""The API server's lists: whatever it holds, no more than a bound is read, and kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.kit import kubernetes
from services.kit.kubernetes import Cluster, Objects, Query, TooLarge
from tests.support import kubernetes_api
from tests.support.kubernetes_api import KubernetesApi

MODELS = "/apis/cinquefoil.io/v1alpha1/namespaces/models/models"


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi.running() as api:
        yield api


@pytest.fixture
async def cluster(tmp_path: Path, api: KubernetesApi) -> AsyncIterator[Cluster]:
    account = kubernetes_api.account(tmp_path)
    async with Cluster.reached("a", "b", account, api.url) as cluster:
        yield cluster


@asynccontextmanager
async def following(cluster: Cluster) -> AsyncIterator[asyncio.Queue[list[str]]]:
    """Follow the Models while the block runs; yield their names as they are reported."""
    seen = asyncio.Queue[list[str]]()

    def use(found: Objects) -> None:
        seen.put_nowait([each["metadata"]["name"] for each in found.values()])

    task = asyncio.create_task(cluster.follow(Query(MODELS), use, lambda: None))
    yield seen
    task.cancel()
    await asyncio.wait([task])


async def add(api: KubernetesApi, name: str, spec: Any, second: int = 0) -> None:
    metadata = {
        "name": name,
        "creationTimestamp": f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z",
    }
    await api.apply(MODELS, {"metadata": metadata, "spec": spec})


async def test_a_list_is_read_in_pages_that_get_smaller_where_objects_are_large(
    api: KubernetesApi, cluster: Cluster
) -> None:
    """No answer of more than 4 MiB is taken: of one list they were 11, before they were bounded."""
    for at in range(150):
        await add(api, f"small-{at:03}", {})
    for at in range(11):
        await add(api, f"tall-{at:02}", "x" * 2**20)
    async with following(cluster) as seen:
        assert await seen.get() == sorted(api.objects[MODELS])
    assert api.pages[:2] == [64, 64]
    assert max(api.pages[-3:]) <= 4
    await add(api, "zzz", "x" * 2**22)
    with pytest.raises(TooLarge, match="more than 4194304 bytes"):
        await cluster.follow(Query(MODELS), lambda _: None, lambda: None)


async def test_objects_without_room_are_left_out_and_evict_no_other(
    api: KubernetesApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a list the oldest have room, whatever they are called; then those that change do not."""
    monkeypatch.setattr(kubernetes, "MOST_WEIGHT", 100_000)
    monkeypatch.setattr(kubernetes, "MOST_OBJECTS", 70)
    await add(api, "zzz", {}, second=0)
    for at in range(100):
        await add(api, f"young-{at:02}", {}, second=10 + at)
    await add(api, "aaa", [[]] * 5000, second=5)  # 20 kB, and 340 kB in memory
    oldest = {"zzz", *(f"young-{at:02}" for at in range(69))}
    async with following(cluster) as seen:
        assert {*await seen.get()} == oldest
        await add(api, "young-00", [[]] * 5000, second=10)
        assert {*await seen.get()} == oldest - {"young-00"}
        await api.delete(MODELS, "zzz")
        await seen.get()
        await add(api, "young-00", None, second=10)
        assert {*await seen.get()} == oldest - {"zzz"}

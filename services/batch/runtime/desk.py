"""Operations of callers on files and batches; both the gRPC and the HTTP form are thin over it."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from cinquefoil.batch.v1.records import Batch, BatchOutlook, BatchState, File, WaitingAccount
from cinquefoil.planner.v1.records import WaitingRelease
from services.batch.adapters.store import too_many_bytes
from services.batch.core.backlog import due_no_later
from services.batch.core.lines import ENDPOINTS, WINDOWS_S, is_endpoint
from services.batch.core.releases import expected
from services.batch.runtime.runner import Parts, Runner
from services.kit.errors import DeadlineExceeded, InvalidArgument, NotFound, ResourceExhausted
from services.kit.rpc import Caller

ENDED: Final = frozenset(
    (BatchState.COMPLETED, BatchState.FAILED, BatchState.EXPIRED, BatchState.CANCELLED)
)
PURPOSE: Final = "batch"

_MIB: Final = 2**20
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_PAGE: Final = 500
_LONGEST_NAME: Final = 256
_MOST_KEYS: Final = 16
_LONGEST_KEY: Final = 64
_LONGEST_VALUE: Final = 512
_WATCH_S: Final = 0.5
_MOST_LISTED: Final = 100
_MOST_WATCHES: Final = 32
"""Batches that one owner may watch at a time: each is read twice a second."""
_SILENT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the files and batches that a call is about.

    Attributes:
        name: Identity of the caller.
        sees_all: Whether it may see and cancel the batches of others.
    """

    name: str
    sees_all: bool = False

    @classmethod
    def of(cls, name: str, who: Caller) -> Owner:
        """Return the owner that a caller is."""
        return cls(name.removeprefix("id:"), who.roles is not None and who.may_be("operator"))


class Desk:
    """Takes files and batches.

    Args:
        parts: What it works with.
        runner: Runs batches.
    """

    def __init__(self, parts: Parts, runner: Runner) -> None:
        self._store, self._contents = parts.store, parts.contents
        self._settings, self._clock = parts.settings, parts.clock
        self._runner, self._wake, self._releases = runner, runner.wake, parts.releases
        self._arriving: Counter[str] = Counter()  # bytes of files that are not whole, by owner
        self._watches: Counter[str] = Counter()

    def hear(self, releases: Iterable[WaitingRelease], services: int) -> None:
        """Take the planner's word on what may run."""
        self._releases.hear(releases, services)
        self._wake()

    def releases(self) -> tuple[WaitingRelease, ...]:
        """Return the planner's last word."""
        return tuple(self._releases.by_model.values())

    def _expected(self, batch: Batch) -> Batch:
        """Return a batch with what is expected of it."""
        release = self._releases.by_model.get(batch.model)
        if release is None or batch.state is not BatchState.IN_PROGRESS:
            return batch
        before = due_no_later(self._runner.open, batch)
        due, now = batch.created_at + batch.window, self._clock.now()
        found = expected(release, due, before, now)
        outlook = BatchOutlook(done_by=found.done_by, late_requests=found.late, text=found.text)
        return replace(batch, outlook=outlook)

    # ---- files ---------------------------------------------------------------------------------

    async def _take(
        self,
        owner: str,
        content: AsyncIterator[bytes],
        append: Callable[[bytes], Awaitable[None]],
    ) -> int:
        """Store a file's content as it comes, and return its size, bytes.

        What comes of other files of the owner meanwhile counts, too.
        """
        size, most, room = 0, self._settings.max_file_mib * _MIB, self._settings.max_stored_mib
        stored = await self._store.stored_bytes(owner)
        try:
            async for piece in _in_time(content):
                size += len(piece)
                self._arriving[owner] += len(piece)
                if size > most:
                    raise ResourceExhausted(
                        f"file: larger than the {most / _MIB:.0f} MiB that batch.max_file_mib "
                        "allows",
                        field="file",
                        reason="REQUEST_TOO_LARGE",
                    )
                if stored + self._arriving[owner] > room * _MIB:
                    raise too_many_bytes(stored + self._arriving[owner], room * _MIB)
                self._contents.check_room(len(piece))
                await append(piece)
        finally:
            self._arriving -= Counter({owner: size})
        return size

    async def upload(self, owner: Owner, name: str, content: AsyncIterator[bytes]) -> File:
        """Store a file as it comes.

        Raises:
            ResourceExhausted: It is too large, or the disk is full.
            DeadlineExceeded: Nothing came of it for a while.
        """
        id_ = f"file-{secrets.token_hex(12)}"
        async with self._contents.writing(id_) as append:
            size = await self._take(owner.name, content, append)
        now = self._clock.now()
        file = File(
            id=id_,
            owner=owner.name,
            name="".join(filter(str.isprintable, name))[:_LONGEST_NAME] or "file.jsonl",
            purpose=PURPOSE,
            size_bytes=size,
            created_at=now,
            expires_at=now + timedelta(seconds=self._settings.keep_files_s),
        )
        try:
            await self._store.add_file(file, self._settings.max_stored_mib * _MIB)
        except BaseException:
            await self._contents.delete(id_)
            raise
        return file

    async def file(self, owner: Owner, id_: str) -> File:
        """Return a file of the owner's; raises NotFound."""
        return await self._store.file(id_, owner.name)

    async def files(
        self, owner: Owner, *, purpose: str, after: str, limit: int
    ) -> tuple[list[File], bool]:
        """Return files, newest first, and whether there are more."""
        most = min(limit or _MOST_LISTED, 10_000)
        found = await self._store.list_files(
            owner.name, purpose=purpose, after=after, limit=most + 1
        )
        return found[:most], len(found) > most

    async def content(self, owner: Owner, id_: str) -> AsyncIterator[bytes]:
        """Yield the content of a file of the owner's."""
        await self._store.file(id_, owner.name)
        async for piece in self._contents.chunks(id_):
            yield piece

    async def delete(self, owner: Owner, id_: str) -> None:
        """Delete a file of the owner's that no batch reads."""
        await self._store.delete_file(id_, owner.name)
        await self._contents.delete(id_)

    # ---- batches -------------------------------------------------------------------------------

    async def submit(
        self,
        owner: Owner,
        *,
        file_id: str,
        endpoint: str,
        window_s: float,
        metadata: Mapping[str, str],
    ) -> Batch:
        """Begin a batch.

        Raises:
            InvalidArgument: Its endpoint, window or metadata are not allowed.
            NotFound: The owner has no such file.
            ResourceExhausted: Too many requests of the owner's wait.
        """
        if not is_endpoint(endpoint):
            raise InvalidArgument.at(
                "endpoint", f"must be one of {', '.join(ENDPOINTS)}, got {endpoint[:80]!r}"
            )
        if window_s not in WINDOWS_S.values():
            raise InvalidArgument.at("completion_window", f"must be one of {', '.join(WINDOWS_S)}")
        _check(metadata)
        if (await self.file(owner, file_id)).purpose != PURPOSE:
            raise InvalidArgument.at("input_file_id", f'the file\'s purpose must be "{PURPOSE}"')
        batch = Batch(
            id=f"batch_{secrets.token_hex(12)}",
            owner=owner.name,
            endpoint=endpoint,
            input_file_id=file_id,
            window=timedelta(seconds=window_s),
            state=BatchState.VALIDATING,
            metadata=dict(metadata),
            created_at=self._clock.now(),
        )
        self._contents.check_room()
        await self._store.add(
            batch, self._settings.max_waiting_lines, self._settings.max_open_batches
        )
        self._wake()
        return batch

    async def batch(self, owner: Owner, id_: str) -> Batch:
        """Return a batch that the owner may see; raises NotFound."""
        found = await self._store.batch(id_, None if owner.sees_all else owner.name)
        return self._expected(found)

    async def batches(
        self, owner: Owner, *, after: str, limit: int, all_owners: bool = False
    ) -> tuple[list[Batch], bool]:
        """Return batches, newest first, and whether there are more."""
        most = min(limit or 20, _MOST_LISTED)
        name = None if all_owners and owner.sees_all else owner.name
        found = await self._store.list_batches(name, after=after, limit=most + 1)
        return [self._expected(each) for each in found[:most]], len(found) > most

    async def cancel(self, owner: Owner, id_: str) -> Batch:
        """End a batch early; one that has ended stays as it is."""
        found = await self.batch(owner, id_)
        changed = await self._store.change(
            found.id,
            BatchState.CANCELLING,
            within=(BatchState.VALIDATING, BatchState.IN_PROGRESS),
        )
        self._wake()
        return changed or found

    async def account(
        self, owner: Owner, since: datetime | None, until: datetime | None
    ) -> list[WaitingAccount]:
        """Return what batches took that began within a time: the owner's, or those of all.

        Raises:
            InvalidArgument: The time ends before it begins.
        """
        since, until = since or _EPOCH, until or self._clock.now()
        if since > until:
            raise InvalidArgument.at("since", "must not be later than until")
        name = None if owner.sees_all else owner.name
        return await self._store.account(name, since.timestamp(), until.timestamp())

    async def watch(self, owner: Owner, id_: str) -> AsyncIterator[Batch]:
        """Yield a batch as it changes, until it has ended."""
        last, name = None, owner.name
        if self._watches[name] >= _MOST_WATCHES:
            raise ResourceExhausted(
                f"{_MOST_WATCHES} batches are watched by you, the most that may be",
                reason="TOO_MANY_WATCHES",
            )
        self._watches[name] += 1
        try:
            while last is None or last.state not in ENDED:
                found = await self.batch(owner, id_)
                if found != last:
                    yield found
                last = found
                await asyncio.sleep(_WATCH_S)
        finally:
            self._watches -= Counter((name,))  # and forget who watches nothing

    async def results(self, owner: Owner, id_: str) -> AsyncIterator[list[bytes]]:
        """Yield the lines of results, some at a time, those of a batch that runs, too."""
        batch, after = await self.batch(owner, id_), 0
        if batch.owner != owner.name:
            raise NotFound(f"no batch {id_[:80]!r} of yours", reason="NO_SUCH_BATCH")
        while page := await self._store.results(batch.id, after, _PAGE):
            yield [content for _, content in page]
            after = page[-1][0]
        if after:
            return
        for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
            rest = b""
            async for chunk in self._contents.chunks(file_id):
                *whole, rest = (rest + chunk).split(b"\n")
                if whole:
                    yield whole


async def _in_time(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of a file.

    Raises:
        DeadlineExceeded: The next one does not come.
    """
    while True:
        try:
            async with asyncio.timeout(_SILENT_S):
                piece = await anext(content)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise DeadlineExceeded(
                f"nothing came of the file for {_SILENT_S:g} s", reason="SLOW_CLIENT"
            ) from None
        yield piece


def check_purpose(purpose: str) -> None:
    """Raise InvalidArgument for a purpose that files cannot have."""
    if purpose != PURPOSE:
        raise InvalidArgument.at("purpose", f'must be "{PURPOSE}", got {purpose[:40]!r}')


def _check(metadata: Mapping[str, str]) -> None:
    fits = len(metadata) <= _MOST_KEYS and all(
        isinstance(value, str) and len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_VALUE
        for key, value in metadata.items()
    )
    if not fits:
        raise InvalidArgument.at(
            "metadata",
            f"at most {_MOST_KEYS} keys of {_LONGEST_KEY} characters, with texts of "
            f"{_LONGEST_VALUE}",
        )

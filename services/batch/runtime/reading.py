"""Reading input files: lines are counted and checked, and cut into pieces that wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from cinquefoil.batch.v1.records import Batch, BatchError
from services.batch.adapters.contents import Contents
from services.batch.adapters.store import Piece, Result
from services.batch.core.lines import Fault, Request, failed, parsed
from services.batch.core.seen import Seen
from services.kit.off_loop import off_loop

PIECE_LINES: Final = 64
_PIECE_BYTES: Final = 2**20
_MOST_ERRORS: Final = 20


def result_id(batch_id: str, line: int) -> str:
    """Return the name of a line's result."""
    return f"batch_req_{batch_id.removeprefix('batch_')}_{line}"


@dataclass(slots=True)
class Inventory:
    """Findings of a reading of a batch's input.

    Attributes:
        batch: The batch.
        model: Model of the first line that can be answered.
        lines: Lines with something on them: a blank one is no request.
        tokens: Estimate of prompts and answers.
        good: Lines that can be answered.
        errors: The first that cannot be.
        faulty: Results of those, until they are taken.
    """

    batch: Batch
    model: str = ""
    lines: int = 0
    tokens: int = 0
    good: int = 0
    errors: list[BatchError] = field(default_factory=list)
    faulty: list[Result] = field(default_factory=list)
    _names: Seen = field(default_factory=Seen)

    def add(self, number: int, line: bytes) -> None:
        """Count a line; `number`: its place in the file, from 1."""
        self.lines += 1
        try:
            request = self._checked(parsed(line, self.batch.endpoint, self.model))
        except Fault as fault:
            if len(self.errors) < _MOST_ERRORS:
                self.errors.append(BatchError(fault.code, fault.message, number))
            content = failed(fault, result_id(self.batch.id, number))
            self.faulty.append(Result(self.batch.id, number, failed=True, content=content))
            return
        self.model = request.model
        self.tokens += request.tokens
        self.good += 1

    def take_faulty(self) -> list[Result]:
        """Return the results of faulty lines, once."""
        taken, self.faulty = self.faulty, []
        return taken

    def _checked(self, request: Request) -> Request:
        if not self._names.add(request.custom_id):
            raise Fault("duplicate_custom_id", "custom_id: another line has it", request.custom_id)
        return request


@dataclass(frozen=True, slots=True)
class Found:
    """A line with something on it.

    Attributes:
        number: From 1; blank ones before it count.
        offset: Its place in the file, bytes.
        text: The line.
    """

    number: int
    offset: int
    text: bytes


async def lines_of(contents: Contents, file_id: str, most: int) -> AsyncIterator[Found]:
    """Yield the lines of a file that have something on them.

    Args:
        contents: Where it is.
        file_id: The file.
        most: Largest line, bytes.

    Raises:
        Fault: A line is larger.
    """
    rest, offset, number = b"", 0, 0
    async for chunk in contents.chunks(file_id):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            if len(line) > most:
                raise Fault("line_too_long", f"a line has more than {most} bytes")
            if line.strip():
                yield Found(number, offset, line)
            offset += len(line) + 1
        if len(rest) > most:
            raise Fault("line_too_long", f"a line has more than {most} bytes")
    if rest.strip():
        yield Found(number + 1, offset, rest)


async def cut(
    contents: Contents, inventory: Inventory, *, most_bytes: int, most_lines: int
) -> AsyncIterator[Piece]:
    """Yield the pieces of a batch's input as it is read, and count its lines.

    Args:
        contents: Where the input is.
        inventory: Counts; has the batch.
        most_bytes: Largest line.
        most_lines: Most lines of a batch.

    Raises:
        Fault: The file has too many lines, or one too long; nothing of it can be answered.
    """
    batch, number = inventory.batch, 0
    first = last = None
    async for line in lines_of(contents, batch.input_file_id, most_bytes):
        await off_loop(len(line.text), partial(inventory.add, line.number, line.text))
        if inventory.lines > most_lines:
            raise Fault("too_many_lines", f"batch.max_lines allows {most_lines} lines")
        if first and last and not _fits(first, line):
            yield _piece(batch.id, number, first, last)
            first, number = None, number + 1
        first, last = first or line, line
    if first and last:
        yield _piece(batch.id, number, first, last)


def _fits(first: Found, line: Found) -> bool:
    """Return whether a line fits into the piece that another begins."""
    size_bytes = line.offset + len(line.text) - first.offset
    return line.number - first.number < PIECE_LINES and size_bytes <= _PIECE_BYTES


def _piece(batch_id: str, number: int, first: Found, last: Found) -> Piece:
    size_bytes = last.offset + len(last.text) - first.offset
    lines = last.number + 1 - first.number
    return Piece(batch_id, number, first.offset, size_bytes, first.number, lines)

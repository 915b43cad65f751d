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
        lines: Lines with something on them.
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

    def add(self, line: bytes) -> None:
        """Count a line."""
        self.lines += 1
        try:
            request = self._checked(parsed(line, self.batch.endpoint, self.model))
        except Fault as fault:
            if len(self.errors) < _MOST_ERRORS:
                self.errors.append(BatchError(fault.code, fault.message, self.lines))
            content = failed(fault, result_id(self.batch.id, self.lines))
            self.faulty.append(Result(self.batch.id, self.lines, failed=True, content=content))
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


async def lines_of(contents: Contents, file_id: str, most: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines of a file that have something on them, each with its offset.

    Args:
        contents: Where it is.
        file_id: The file.
        most: Largest line, bytes.

    Raises:
        Fault: A line is larger.
    """
    rest, offset = b"", 0
    async for chunk in contents.chunks(file_id):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if len(line) > most:
                raise Fault("line_too_long", f"a line has more than {most} bytes")
            if line.strip():
                yield offset, line
            offset += len(line) + 1
        if len(rest) > most:
            raise Fault("line_too_long", f"a line has more than {most} bytes")
    if rest.strip():
        yield offset, rest


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
    batch = inventory.batch
    start = first = end = lines = number = 0
    async for offset, line in lines_of(contents, batch.input_file_id, most_bytes):
        await off_loop(len(line), partial(inventory.add, line))
        if inventory.lines > most_lines:
            raise Fault("too_many_lines", f"batch.max_lines allows {most_lines} lines")
        if lines == PIECE_LINES or (lines and offset + len(line) - start > _PIECE_BYTES):
            yield Piece(batch.id, number, start, end - start, first, lines)
            lines, number = 0, number + 1
        if not lines:
            start, first = offset, inventory.lines
        end, lines = offset + len(line), lines + 1
    if lines:
        yield Piece(batch.id, number, start, end - start, first, lines)

"""Follows a page in Markdown block by block, as its reader would, and compares the output.

    python -m tests.support.documents FOLDER PAGE...

follows pages in a copy of the clone in FOLDER, and in a network of its own, so that the addresses
that pages name are free. What a page may have:

- `console`: commands after `$ `, each with its output below. Numbers and white space may differ;
  `...` is any text, as a line any lines. `make TARGET` does what the target does once everything is
  installed. A suite (`up`, `demo --stay`) runs until the page says *ctrl-c* outside of a block.
- `python` and `yaml` with `title="FILE"`: is written to FILE.
- `python`: runs with the names that the page's blocks before it defined.
- `yaml`: is a valid deployment.
- `<!-- needs MODULE... -->`: where one is missing, what follows is left out up to the next section.

Any other block is an error.
"""

import argparse
import contextlib
import fcntl
import importlib.util
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from services.kit.config.loader import ConfigError, load
from tests.support.paths import ROOT

SHORTER: Final = {"cinquefoil demo": "--seconds 12 --rate 4"}
"""Options that a test adds to a command, for the sake of time."""
SETTINGS: Final = {
    "CINQUEFOIL_CARBON__REPLAY__START": "2026-06-01T12:00:00Z",  # pages show what noon shows
    "COLUMNS": "80",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTHONWARNINGS": "ignore",
    "TERM": "dumb",
}
PATIENCE_S: Final = 180.0
"""Most time that a command may take on a busy machine."""

_FENCE: Final = re.compile(r"```(\w*)(?: title=\"([^\"]+)\")?")
_LANGUAGES: Final = ("console", "python", "yaml")
_NEEDS: Final = re.compile(r"<!-- needs ([\w ]+) -->")
_SUITE: Final = re.compile(r"\b(make|cinquefoil) up\b|\bdemo --stay\b")
_NUMBER: Final = re.compile(r"[-+]?\d[\d.,]*(?<![.,])(e-?\d+)?")


class PageError(Exception):
    """A page says what is not so."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    place: str
    """Page and line."""
    language: str
    title: str | None
    lines: tuple[str, ...]

    def covers(self, start: int) -> range:
        """Return the lines of the page that the block takes, with its fences."""
        return range(start, start + len(self.lines) + 2)

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command of a console with the output that the page prints."""
        if not self.lines or not self.lines[0].startswith("$ "):
            raise PageError(f"{self.place}: a console begins with a command: `$ ...`")
        starts = [at for at, line in enumerate(self.lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(self.lines)], strict=True):
            yield self.lines[start][2:], list(self.lines[start + 1 : end])


@dataclass(frozen=True)
class Stop:
    """Ctrl-c, which ends the suite that runs."""


def steps(page: Path) -> Iterator[Block | Stop]:
    """Yield what a page has its reader do.

    Raises:
        PageError: A block is of a kind that cannot be run.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    fences = [at for at, line in enumerate(lines) if line.lstrip().startswith("```")]
    blocks = {
        start: _block(f"{page.name}:{start + 1}", lines[start:end])
        for start, end in zip(fences[::2], [*fences[1::2], len(lines)], strict=False)
    }
    inside = {at for start, block in blocks.items() for at in block.covers(start)}
    left_out = False
    for at, line in enumerate(lines):
        if needed := _NEEDS.fullmatch(line):
            left_out = any(importlib.util.find_spec(each) is None for each in needed[1].split())
        elif line.startswith("## ") and not _NEEDS.fullmatch(lines[at - 1]):
            left_out = False
        if left_out:
            continue
        if at in blocks:
            yield blocks[at]
        elif at not in inside and "ctrl-c" in line.lower():
            yield Stop()


def _block(place: str, lines: list[str]) -> Block:
    opened = _FENCE.fullmatch(lines[0])
    if opened is None or opened[1] not in _LANGUAGES:
        raise PageError(f"{place}: no way to run a block that begins {lines[0]!r}")
    return Block(place, opened[1], opened[2], tuple(lines[1:]))


def differs(expected: list[str], actual: str) -> str | None:
    """Return the first printed lines of a page that an output lacks; None: it is as printed."""
    left = [_shape(line) for line in actual.splitlines() if line.strip()]
    chunks: list[list[str]] = [[]]
    for line in filter(str.strip, expected):
        if line.strip() == "...":
            chunks.append([])
        else:
            chunks[-1].append(line)
    for index, chunk in enumerate(chunks):
        places = range(len(left) - len(chunk) + 1)
        if index == len(chunks) - 1:
            places = places[-1:]
        if index == 0:
            places = places[:1] if len(chunks) > 1 or len(left) == len(chunk) else range(0)
        patterns = [re.compile(_pattern(line)) for line in chunk]
        found = (at for at in places if all(map(re.fullmatch, patterns, left[at:])))
        if (at := next(found, None)) is None:
            return "\n".join(chunk) or "(nothing more)"
        left = left[at + len(chunk) :]
    return None


def _shape(line: str) -> str:
    """Return a line without what differs from run to run: its numbers, and the width of columns."""
    return re.sub(r"─+", "─", " ".join(_NUMBER.sub("0", line).split()))


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part.strip()) for part in _shape(line).split("..."))


@dataclass
class Reader:
    """Somebody who does what pages say, in a folder that looks like a clone."""

    folder: Path
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ) | SETTINGS)
    where: Path = field(init=False)
    """Working directory of the shell."""
    _suite: subprocess.Popen[bytes] | None = None
    _names: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.where = self.folder

    def read(self, page: Path) -> None:
        """Do all that a page says.

        Raises:
            PageError: Something is not as the page says.
        """
        self._names = {"__name__": page.stem}
        try:
            for step in steps(page):
                if isinstance(step, Stop):
                    self._stop()
                else:
                    self._do(step)
        finally:
            self._stop()

    def _do(self, block: Block) -> None:
        text = "\n".join(block.lines) + "\n"
        if block.language == "console":
            for command, expected in block.commands():
                started = time.monotonic()
                self._run(_in_a_test(command), f"{block.place}: {command}", expected)
                took_s = time.monotonic() - started
                _note(f"{took_s:5.1f} s, {_cpu_s():5.1f} s of CPU  {block.place} $ {command}")
        elif block.title is not None:
            (self.where / block.title).write_text(text, encoding="utf-8")
        elif block.language == "python":
            try:
                with contextlib.chdir(self.where):
                    exec(compile(text, block.place, "exec"), self._names)  # noqa: S102 - ours
            except Exception as error:
                raise PageError(f"{block.place}: {error!r}") from error
        else:
            (file := self.folder / "block.yaml").write_text(text, encoding="utf-8")
            try:
                load(file)
            except ConfigError as error:
                raise PageError(f"{block.place}: {error}") from error

    def _run(self, command: str, place: str, expected: list[str]) -> None:
        """Run one command in a shell that continues where the last one ended."""
        is_suite = _SUITE.search(command) is not None
        if is_suite and self._suite is not None:
            raise PageError(f"{place}: a suite runs: the page does not say ctrl-c before")
        output = self.folder / ("suite.txt" if is_suite else "command.txt")
        process = self._shell(command, output)
        if is_suite:
            self._suite = process
            self._until_printed(place, expected, output)
            return
        try:
            status = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise PageError(f"{place}: not done within {PATIENCE_S:g} s") from None
        printed = output.read_text(encoding="utf-8", errors="replace")
        if status != 0:
            raise PageError(f"{place}: status {status}\n{printed}")
        if (lacking := differs(expected, printed)) is not None:
            raise PageError(f"{place}\nlacks\n{lacking}\nand prints\n{printed}")
        self.where = Path((self.folder / "shell.cwd").read_text(encoding="utf-8").strip())
        kept = (self.folder / "shell.env").read_text(encoding="utf-8").split("\0")
        self.environment = dict(each.split("=", 1) for each in kept if "=" in each)

    def _shell(self, command: str, output: Path) -> subprocess.Popen[bytes]:
        keep = shlex.quote(str(self.folder / "shell"))
        script = f"{command}\nstatus=$?; pwd > {keep}.cwd; env -0 > {keep}.env; exit $status"
        with output.open("wb") as file:
            return subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.where,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _until_printed(self, place: str, expected: list[str], output: Path) -> None:
        """Wait until a suite that was started has printed what the page prints."""
        ends = time.monotonic() + PATIENCE_S
        while True:
            printed = output.read_text(encoding="utf-8", errors="replace")
            if (lacking := differs(expected, printed)) is None:
                return
            assert self._suite is not None
            if self._suite.poll() is not None or time.monotonic() > ends:
                raise PageError(f"{place}\nlacks\n{lacking}\nand prints\n{printed}")
            time.sleep(0.2)

    def _stop(self) -> None:
        """End the suite as ctrl-c does."""
        if (suite := self._suite) is None:
            return
        self._suite = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(suite.pid, signal.SIGINT)
        try:
            suite.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(suite.pid, signal.SIGKILL)
            raise PageError("ctrl-c does not end the suite within 30 s") from None


def _in_a_test(command: str) -> str:
    """Return what a test runs for a command of a page."""
    words = command.split("  #", 1)[0].strip()
    if words.startswith("make "):
        # Beneath another make it would name the folders that it enters.
        only_said = ["make", "--no-print-directory", "--dry-run", "--old-file=.venv/.run"]
        only_said += words.split()[1:]
        made = subprocess.run(only_said, cwd=ROOT, capture_output=True, text=True, check=True)
        words = made.stdout.strip().replace("\n", "; ")
    for command_in_full, options in SHORTER.items():
        if words.endswith(command_in_full):
            words += f" {options}"
    return words


def _cpu_s() -> float:
    """Return the processor time of all that has ended so far, a suite's when it has."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _note(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def clone(folder: Path) -> None:
    """Make a folder look like a fresh clone in which `make` has installed everything."""
    listed = subprocess.run(
        ["git", "ls-files", "Makefile", "*.yaml", "examples"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if "/" not in name or name.startswith("examples/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix)


def own_network() -> list[str]:
    """Return the words that run a command in a network of its own; none: it is not allowed here."""
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
                return words
    return []


def _loopback_up() -> None:
    """Switch on the loopback device, which is off in a new network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 1)  # IFF_UP
        fcntl.ioctl(control, 0x8914, request)  # SIOCSIFFLAGS


def main(words: list[str] | None = None) -> int:
    """Read pages; return 1 where one says what is not so."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("pages", type=Path, nargs="+")
    parsed = parser.parse_args(words)
    _loopback_up()
    if not (parsed.folder / "Makefile").exists():
        clone(parsed.folder)
    reader = Reader(parsed.folder.resolve())
    try:
        for page in parsed.pages:
            reader.read(page.resolve())
    except PageError as error:
        _note(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""End of a command: expected failures as one sentence, signals as cancellation."""

import asyncio
import errno
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import typer
import uvloop

from services.kit.config.loader import DEFAULT_FILE, ConfigError
from services.kit.errors import ServiceError, leaves

T = TypeVar("T")

INTERRUPTED = 130
_OURS = ("services", "cinquefoil", "inference")


@contextmanager
def explained() -> Iterator[None]:
    """Turn expected failures into a sentence and an exit status.

    Exit statuses: 2 where the deployment file is wrong, 1 for anything a service said, for files
    that cannot be read or written and for libraries that are not installed, 130 where a signal
    ended the command.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        raise typer.Exit(INTERRUPTED) from error
    except Exception as error:
        found = [_explanation(leaf) for leaf in leaves(error)]
        if None in found:
            raise
        status, sentence = cast(tuple[int, str], found[0])
        typer.echo(sentence, err=True)
        raise typer.Exit(status) from error


def _explanation(error: BaseException) -> tuple[int, str] | None:
    """Return the exit status and the sentence of an expected failure; None for a bug."""
    match error:
        case ConfigError():
            missing = error.path.name == DEFAULT_FILE.name and not error.path.exists()
            hint = "\n`cinquefoil init` writes an example deployment." if missing else ""
            return 2, f"{error}{hint}"
        case ServiceError():
            return 1, error.message
        case OSError() if error.filename is not None:  # else no file of the operator's
            return 1, f"{error.filename}: {error.strerror}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):  # a write knows no file's name
            return 1, f"nothing more can be written: {error.strerror}"
        case ModuleNotFoundError() if str(error.name).partition(".")[0] not in _OURS:
            return 1, f"{error.name} is not installed: pip install 'cinquefoil[all]'"
        case _:
            return None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; SIGINT, SIGTERM and SIGHUP cancel it, so that it cleans up."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_cancellable(work))


def _hung_up(task: asyncio.Task[Any]) -> None:
    """End a command whose terminal has closed, or who was to reload what it does not have."""
    with suppress(OSError):
        typer.echo("SIGHUP: this command ends; services and `up` reload their file", err=True)
    task.cancel()


async def _cancellable(work: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), cast(asyncio.Task[T], asyncio.current_task())
    if threading.current_thread() is threading.main_thread():  # where Python delivers signals
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
            loop.add_signal_handler(signal.SIGHUP, _hung_up, task)
    return await work

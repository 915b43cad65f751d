"""How a command ends: expected failures as one sentence, signals as cancellation."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import typer
import uvloop

from services.kit.config.loader import DEFAULT_FILE, ConfigError
from services.kit.errors import ServiceError

T = TypeVar("T")

INTERRUPTED = 130


@contextmanager
def explained() -> Iterator[None]:
    """Turn what can be expected to go wrong into a sentence and an exit status.

    Exit statuses: 2 where the deployment file is wrong, 1 for anything a service said and for files
    that cannot be read or written, 130 where a signal ended the command.
    """
    try:
        yield
    except ConfigError as error:
        typer.echo(str(error), err=True)
        if error.path.name == DEFAULT_FILE.name and not error.path.exists():
            typer.echo("`cinquefoil init` writes an example deployment.", err=True)
        raise typer.Exit(2) from error
    except ServiceError as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        if error.filename is None:  # no file of the operator's: a mistake of ours
            raise
        typer.echo(f"{error.filename}: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    except ExceptionGroup as group:
        expected, rest = group.split((ConfigError, ServiceError, OSError))
        if expected is None or rest is not None:
            raise
        with explained():
            raise _first(expected) from group
    except asyncio.CancelledError as error:
        raise typer.Exit(INTERRUPTED) from error


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a command's work; SIGINT and SIGTERM cancel it, so that it cleans up."""
    with explained(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_cancellable(work))


async def _cancellable(work: Coroutine[Any, Any, T]) -> T:
    loop, task = asyncio.get_running_loop(), cast(asyncio.Task[T], asyncio.current_task())
    if threading.current_thread() is threading.main_thread():  # where Python delivers signals
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
    return await work


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""What a person sees while a command works."""

from rich.console import Console
from rich.status import Status


def working(what: str) -> Status:
    """Return a line that moves, on standard error where that is a terminal, while it is entered."""
    return Console(stderr=True).status(what)

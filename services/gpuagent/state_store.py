"""Where the agent and simulated hardware keep their state."""

from functools import cache
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from pydantic import TypeAdapter

from services.kit.state_file import read_disposable, read_parsed, remove, write_json

VERSION: Final = 1

Kept = TypeVar("Kept")
_Stamp = tuple[int, int, int]
_MISSING: Final = (0, 0, 0)


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    """Return what reads and writes a type; building one takes 5 ms."""
    return TypeAdapter(kind)


class Store(Generic[Kept]):
    """One record: in memory, or in a JSON file that is replaced as a whole. Calls block.

    One process writes; any number may read, and see each value either before or after a change.

    Args:
        path: The file; None: the value ends with the process.
        kind: The dataclass of the value, whose fields are the file's.
    """

    def __init__(self, path: Path | None, kind: type[Kept]) -> None:
        self._path = path
        self._json: TypeAdapter[Kept] = _adapter(cast("Any", kind))
        self._value: Kept | None = None
        self._stamp: _Stamp | None = None

    def load(self, *, disposable: bool = False) -> Kept | None:
        """Return the value, None: there is none; a file is read again only once it is replaced.

        Args:
            disposable: A damaged file is set aside, and there is no value any more.

        Raises:
            Damaged: The file does not hold such a value.
            Unavailable: It cannot be read, or not be set aside.
        """
        if self._path is not None:
            stamp = _stamp(self._path)
            if stamp is None or stamp != self._stamp:
                read = read_disposable if disposable else read_parsed
                self._value = read(self._path, self._json.validate_python, version=VERSION)
                self._stamp = stamp
        return self._value

    def save(self, value: Kept, *, durable: bool = True) -> None:
        """Keep a new value.

        Args:
            value: The value.
            durable: The disk has it when this returns.

        Raises:
            Unavailable: The disk does not take it; the value is as before.
        """
        if self._path is not None:
            fields = self._json.dump_python(value, mode="json")
            write_json(self._path, {"version": VERSION, **fields}, durable=durable)
            self._stamp = _stamp(self._path)
        self._value = value

    def clear(self) -> None:
        """Keep no value any more.

        Raises:
            Unavailable: The disk does not let it go.
        """
        if self._path is not None:
            remove(self._path)
        self._value = None


def _stamp(path: Path) -> _Stamp | None:
    """Return what is another once a file is made, replaced or removed; None: it cannot be seen."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return _MISSING
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size

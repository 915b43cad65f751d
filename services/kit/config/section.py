"""Base types of the sections."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)

from services.kit.net import address_of, split_address, without_password


def _address(value: str) -> str:
    return address_of(*split_address(value)) if value else value


Address = Annotated[str, AfterValidator(_address), Field(description='"host:port"')]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
ClockRatio = Annotated[float, Field(gt=0, le=1)]


_DATABASE_URL: Final = r"^(postgresql|sqlite)(\+\w+)?://"


def _no_other_url(value: object) -> object:
    """Refuse URLs of other databases, which would be taken for file paths."""
    if isinstance(value, str) and "://" in value and not re.match(_DATABASE_URL, value):
        raise ValueError("must be a file, or a URL that begins with postgresql:// or sqlite://")
    return value


def _shown(database: Path | str) -> str:
    # Settings are logged and printed as JSON.
    return without_password(str(database))


Dsn = Annotated[str, Field(pattern=_DATABASE_URL)]
Database = Annotated[
    Path | Dsn,
    BeforeValidator(_no_other_url),
    PlainSerializer(_shown, return_type=str, when_used="json"),
]
"""An SQLite file, or the URL of a database."""


def _described(schema: dict[str, Any], section: type[BaseModel]) -> None:
    """Copy descriptions from a section's docstring, and its bases', into its JSON schema."""
    sentences: dict[str, str] = {}
    for each in reversed(section.__mro__):
        sentences |= _attributes(each.__doc__ or "")
    for name, found in schema.get("properties", {}).items():
        if name == "kind" and "const" in found:
            found["description"] = f"Selects this kind of section: {found['const']}."
        elif name in sentences:
            found["description"] = sentences[name]
    schema["description"] = cleandoc(section.__doc__ or "").partition("\n\nAttributes:")[0]


def _attributes(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's part "Attributes:", by name."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in cleandoc(docstring).partition("\nAttributes:\n")[2].splitlines():
        if entry := _ENTRY.fullmatch(line):
            names = entry[1].split(", ")
            found |= dict.fromkeys(names, entry[2])
        elif names and line.startswith(" " * 8):
            found |= dict.fromkeys(names, f"{found[names[0]]} {line.strip()}")
        else:
            names = []
    return found


_ENTRY: Final = re.compile(r" {4}(\w+(?:, \w+)*): (.+)")


class Section(BaseModel):
    """Base of every section: immutable, and a mistyped key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, json_schema_extra=_described
    )

    def _problems(self) -> Iterator[str]:
        """Yield contradictions between the values, as "key: sentence"; the first is reported."""
        yield from ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for problem in self._problems():
            raise ValueError(problem)
        return self


class Endpoint(Section):
    """Addresses of a service.

    Attributes:
        listen: "host:port" to bind; loopback by default.
        address: "host:port" that others connect to; empty: `listen`. Of carbon and planner a list,
            where there are several: others connect to the first that serves.
        metrics: "host:port" of the Prometheus endpoint, and of /livez and /readyz; empty: none.
        health: "host:port" where grpc.health.v1 is answered in plaintext to every caller, for
            probes: "liveness" and "readiness". Nothing else is. Empty: none.
        max_connection_requests: Largest number of calls at a time on one connection; further ones
            wait.
    """

    several: ClassVar[bool] = False
    """True if the service may have several instances, each with an address."""

    listen: Address
    address: Address | Annotated[tuple[Address, ...], Field(min_length=1)] = ""
    metrics: Address = ""
    health: Address = ""
    max_connection_requests: Annotated[int, Field(ge=1)] = 1000

    @property
    def dials(self) -> tuple[str, ...]:
        """Addresses that others connect to."""
        given = (self.address,) if isinstance(self.address, str) else self.address
        return tuple(each or self.listen for each in given)

    @property
    def dial(self) -> str:
        """Address that others connect to, the first of several."""
        return self.dials[0]

    @field_validator("address")
    @classmethod
    def _one_where_there_is_one(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(value, tuple) and not cls.several:
            raise ValueError("must be one address: only carbon and planner may have several")
        return value

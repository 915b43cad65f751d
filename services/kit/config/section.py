"""What every section of the file is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.kit.net import split_address


def _address(value: str) -> str:
    if value:
        split_address(value)
    return value


Address = Annotated[str, AfterValidator(_address), Field(description='"host:port"')]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
ClockRatio = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Base of every section: immutable, and a mistyped key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Tls(Section):
    """Certificates, PEM. With `require_client_certificate`, both sides show one (mutual TLS)."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    require_client_certificate: bool = False


class Endpoint(Section):
    """Where a service listens, and where others find it.

    Attributes:
        listen: "host:port" to bind. Loopback unless told otherwise.
        address: "host:port" that others dial; `listen` where empty.
        metrics: "host:port" of the Prometheus endpoint; empty: none.
    """

    listen: Address
    address: Address = ""
    metrics: Address = ""

    @property
    def dial(self) -> str:
        """Where others dial this service."""
        return self.address or self.listen

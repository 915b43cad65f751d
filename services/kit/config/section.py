"""Base types of the sections."""

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


class Endpoint(Section):
    """Addresses of a service.

    Attributes:
        listen: "host:port" to bind; loopback by default.
        address: "host:port" that others connect to; empty: `listen`.
        metrics: "host:port" of the Prometheus endpoint; empty: none.
    """

    listen: Address
    address: Address = ""
    metrics: Address = ""

    @property
    def dial(self) -> str:
        """Address that others connect to."""
        return self.address or self.listen

"""The data sets that benchmarks and documentation read, as `catalog.yaml` lists them."""

import os
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from services.datasets.conversions import Conversion
from services.kit.errors import NotFound

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
RelativePath = Annotated[str, Field(pattern=r"^\w[\w.-]*(/\w[\w.-]*)+$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Original(_Entry):
    """A file in its published form.

    Attributes:
        url: Where; names one version.
        size_bytes: Its length.
        sha256: Of its content.
    """

    url: str
    size_bytes: int
    sha256: Sha256


class DataFile(_Entry):
    """A file of a data set. It has a URL, or originals, or is not published in this form.

    Attributes:
        path: Below the folder of data; begins with the name of its data set.
        size_bytes: Its length.
        sha256: Of its content.
        url: Where it is published as it is.
        originals: What it is converted from, in this order.
        conversion: How.
        made_by: What it was made from, where only `--from` can bring it.
    """

    path: RelativePath
    size_bytes: int
    sha256: Sha256
    url: str = ""
    originals: tuple[Original, ...] = ()
    conversion: Conversion | None = None
    made_by: str = ""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if [bool(self.url), bool(self.originals), bool(self.made_by)].count(True) != 1:
            raise ValueError("exactly one of url, originals and made_by")
        if bool(self.originals) != (self.conversion is not None):
            raise ValueError("originals and conversion come together")
        return self

    @property
    def downloads(self) -> tuple[Original, ...]:
        """Files to download for it; empty: it is not published."""
        if self.url:
            return (Original(url=self.url, size_bytes=self.size_bytes, sha256=self.sha256),)
        return self.originals


class DataSet(_Entry):
    """Files that belong together.

    Attributes:
        holds: Its content, one sentence.
        licence: Under which its publishers give it.
        origin: Page of its publishers.
        citation: Work to cite.
        files: All of them.
    """

    holds: str
    licence: str
    origin: str
    citation: str
    files: tuple[DataFile, ...]


@cache
def catalog() -> dict[str, DataSet]:
    """Return every data set by name. Reads a file of this package."""
    text = files("services.datasets").joinpath("catalog.yaml").read_text(encoding="utf-8")
    return {name: DataSet.model_validate(each) for name, each in yaml.safe_load(text).items()}


def data_set(name: str) -> DataSet:
    """Return a data set.

    Raises:
        NotFound: There is none of this name.
    """
    known = catalog()
    if name not in known:
        raise NotFound(f"no data set {name!r}; there are {', '.join(known)}", field="name")
    return known[name]


def folder() -> Path:
    """Return where data lies: CINQUEFOIL_DATA, or else the user's folder for programs' data."""
    if configured := os.environ.get("CINQUEFOIL_DATA"):
        return Path(configured).absolute()
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
    return Path(base) / "cinquefoil/data"

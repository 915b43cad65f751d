"""The schema that editors and the reference use."""

from typing import Any

from services.kit.config import Deployment

SCHEMA: dict[str, Any] = Deployment.model_json_schema()
SECTIONS = {"Deployment": SCHEMA, **SCHEMA["$defs"]}


def test_every_property_is_described() -> None:
    """A setting that a docstring's part "Attributes:" leaves out fails here."""
    missing = [
        f"{section}.{name}"
        for section, schema in SECTIONS.items()
        for name, found in schema.get("properties", {}).items()
        if not found.get("description")
    ]
    assert missing == []


def test_descriptions_are_whole_sentences_of_the_docstring() -> None:
    """Over several lines, of a base's docstring, and of names that share an entry."""
    model = SECTIONS["Model"]["properties"]
    assert model["overtaking_s"]["description"].endswith("None: ten times the objective's latency.")
    assert SECTIONS["NesoSource"]["properties"]["poll_s"]["description"] == "Polling interval, s."
    assert SECTIONS["NesoSource"]["properties"]["kind"]["description"].endswith(": neso.")
    assert "Attributes:" not in SECTIONS["Model"]["description"]

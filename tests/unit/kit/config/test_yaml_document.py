"""A YAML document is read or refused, within what its bytes and its aliases allow."""

import pytest
import yaml

from services.kit.config.yaml_document import MAX_VALUES, read

_LAUGHS = "".join(
    f"k{at}: &a{at} [{','.join([f'*a{at - 1}'] * 9) if at else 'x'}]\n" for at in range(12)
)
_MERGES = "a: &a {b: 1}\nc: {<<: [" + "*a," * MAX_VALUES + "]}"
HOSTILE = {
    "brackets within brackets": ("a: " + "[" * 20_000 + "]" * 20_000, "nested deeper"),
    "mappings within mappings": ("a: " + "{b: " * 20_000, "nested deeper"),
    "entries within entries": ("- " * 20_000 + "x", "nested deeper"),
    "keys within keys": ("? - " * 20_000 + "x", "nested deeper"),
    "mappings by indentation": ("".join(" " * at + "a:\n" for at in range(1500)), "nested deeper"),
    "aliases of aliases": (_LAUGHS, "values"),
    "merges": (_MERGES, "values"),
    "an alias of itself": ("a: &a [*a]", "contains it"),
    "many values": ("a: [" + "1," * MAX_VALUES + "]", "values"),
    "a number of 90,000 characters": ("a: 1" + ":59" * 30_000, "a number of"),
    "a date that is none": ("a: 2020-13-45", "month"),
    "a number that is too large": ("a: 1e5000\nb: !!int 1" + "0" * 300 + "x", "invalid literal"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_document_beyond_a_bound_is_refused_with_its_reason(name: str) -> None:
    """These took minutes, gigabytes, or ended a service that reloaded its file."""
    text, reason = HOSTILE[name]
    with pytest.raises(yaml.YAMLError, match=reason):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: &a {b: [1, 2.5, x]}\nc: *a\nd: {<<: *a, e: 2026-01-01}\n",
        "a: |\n" + "".join(f"  - {at} {{x}}\n" for at in range(500)),
        "a:\n" + "- [1, {b: 2}]\n" * 1000,
        "a: '" + "x" * 100_000 + "'",
        'a: "' + "[{" * 1000 + '"\n# ' + "? - " * 1000,
    ],
)
def test_others_are_read_as_pyyaml_reads_them(text: str) -> None:
    data, tree = read(text)

    assert data == yaml.safe_load(text)
    assert (tree is None) == (data is None)


def test_nodes_are_as_written_where_a_mapping_merges_another() -> None:
    """A key that overrides a merged one is there once: `demo.yaml` was refused for it."""
    data, tree = read("a: &a {b: 1}\nc: {<<: *a, b: 2}\n")
    assert data["c"] == {"b": 2}
    assert isinstance(tree, yaml.MappingNode)
    assert [key.value for key, _ in tree.value[1][1].value] == ["<<", "b"]

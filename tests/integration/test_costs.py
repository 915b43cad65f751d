"""Input of others costs no more than its bytes allow, whatever it repeats."""

import os

import pytest
from hypothesis import Phase, given, settings, target
from hypothesis import strategies as st

from tests.support.borders import (
    NODE,
    POWER_PERIOD,
    POWERS,
    POWERS_END,
    PRICE_PERIOD,
    PRICES,
    PRICES_END,
    borders,
)
from tests.support.cost import cost, filled, repeated

EXAMPLES = int(os.environ.get("CINQUEFOIL_FUZZ", "6"))
PHASES = [
    each
    for each in Phase
    if each is not Phase.explain and (EXAMPLES > 100 or each is not Phase.shrink)
]
"""A shorter input is no clearer, and to search for one takes minutes where it costs too much."""

SIZE = 2**20 if EXAMPLES > 100 else 2**18
NAMES = sorted(borders())
MIB = 2**20

KNOWN = {
    "inputs that lack all": ("http-infer", b'{"inputs": [', b"{},", b"{}]}"),
    "messages that lack all": ("http-chat", b'{"model": "m", "messages": [', b"{},", b"{}]}"),
    "short messages": (
        "http-chat",
        b'{"model": "m", "messages": [',
        b'{"role":"user","content":""},',
        b"{}]}",
    ),
    "lists as elements": (
        "http-infer",
        b'{"inputs": [{"name": "x", "shape": [4], "datatype": "FP32", "data": [',
        b"[],",
        b"[]]}]}",
    ),
    "large sizes": (
        "http-infer",
        b'{"inputs": [{"name": "x", "datatype": "FP32", "data": [1], "shape": [',
        b"100000000000000000,",
        b"1]}]}",
    ),
    "nested objects": ("http-object", b'{"a": ', b'{"a":', b"1}"),
    "small fields": ("request-head", b"", b"\x08\x01", b""),
    "small fields, large request": ("tensors", bytes(0), b"\x3a\x00", b""),
    "a parameter in pieces": ("request-head", b"\x22\x80\x80\x40", b"\x12\x3e" + bytes(62), b""),
    "values of a provider that lack all": (
        "provider-carbon-aware-sdk-emissions-bylocation",
        b"[",
        b"{},",
        b"{}]",
    ),
    "periods of a provider that lack all": (
        "provider-neso-intensity",
        b'{"data": [',
        b"[],",
        b"[]]}",
    ),
    "prices that hold for ever": ("price-document", PRICES, PRICE_PERIOD, PRICES_END),
    "powers that hold for ever": ("provider-entsoe-api", POWERS, POWER_PERIOD, POWERS_END),
    "brackets in YAML": ("yaml", b"a: ", b"[", b"]"),
    "aliases of aliases": (
        "yaml",
        b"".join(
            b"k%d: &a%d [%s]\n" % (at, at, b"1," if not at else b"*a%d," % (at - 1) * 9)
            for at in range(40)
        ),
        b"# ",
        b"\n",
    ),
    "merged mappings": ("yaml", b"a: &a {b: 1}\nc: {<<: [", b"*a,", b"*a]}"),
    "digits in YAML": ("yaml", b"a: 1", b":59", b"\n"),
    "an entry in an entry": ("yaml", b"a:\n  ", b"- ", b"x"),
    "columns": ("csv-trace", b"timestamp", b",", b"\n"),
    "letters that are sentences": ("csv-trace", b"", "\ufdfa".encode(), b",\n"),
    "messages in messages": ("pbtxt", b"", b"ensemble_scheduling{step{", b""),
    "operators": ("onnx", b"", NODE, b""),
    "entries of parameters": ("request-head", b"", b"\x22\x08\x0a\x04####\x12\x00", b""),
}


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_known_attacks_cost_what_their_bytes_allow(name: str) -> None:
    """A MiB of each: these held the router for .1 to 79 s, or took up to a GiB."""
    border, head, unit, tail = KNOWN[name]
    found = cost(borders()[border], filled(head, unit, tail, MIB))

    assert max(found) <= 1, found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES, deadline=None, phases=PHASES)
@given(data=st.data())
def test_what_is_repeated_costs_what_its_bytes_allow(name: str, data: st.DataObject) -> None:
    """Hypothesis climbs towards what costs most."""
    border = borders()[name]
    sent = filled(*data.draw(repeated(border)), data.draw(st.integers(2**12, SIZE)))
    found = cost(border, sent)
    target(found.cpu, label="processor time")
    target(found.memory, label="memory")

    assert max(found) <= 1, f"{found} for {len(sent)} bytes: {sent[:300]!r}"

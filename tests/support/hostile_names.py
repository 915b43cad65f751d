"""Names that others may give their models, tensors, folders and labels."""

import random
from collections.abc import Iterator
from typing import Final

from hypothesis import strategies as st

CONTROL: Final = (
    *("\n", "\r", "\t", "\x00", "\x07", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\x85", "\xa0", "\xad"),
    *("\u200b", "\u200d", "\u202e", "\u2028", "\u2029", "\u2066", "\ufeff", "\ufffe", "\U000e0041"),
)
"""Characters that end lines, move cursors, turn text around, or are not to be seen."""

SYNTAX: Final = (
    *"#:-&*|>{}[],?@=~%'`<!\"\\/.",
    *(
        "# ",
        ": ",
        "- ",
        " #",
        "&a ",
        "*a",
        "<<",
        "<<: *a",
        "---",
        "...",
        "{port}",
        "${HOME}",
        "$(id)",
    ),
    *(
        "%YAML 1.1",
        "!!python/object/apply:os.system",
        "models: {}",
        "{{",
        "..",
        "--onnx",
        "%s",
        "{0}",
    ),
)
WORDS: Final = (
    *("yes", "on", "off", "null", "~", "true", "1e3", "0x1f", "0o7", "0777", "1_000", "12:30:00"),
    *(
        "2001-01-01",
        ".inf",
        ".nan",
        "models",
        "version",
        "x",
        "²",
        "\u0661",
        "é",
        "e\u0301",
        "模型",
    ),
    *("שלום", "مرحبا", "😀", "👨\u200d👩\u200d👧", "a" * 200, " ", "  lead", "trail  "),
)

NAMES: Final = (
    st.sampled_from(WORDS)
    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
    | st.lists(st.sampled_from([*CONTROL, *SYNTAX, *WORDS]), min_size=1).map("".join)
)


def drawn(count: int, seed: int) -> Iterator[str]:
    """Yield names: pieces that mean something to a parser, and any other characters.

    Args:
        count: How many.
        seed: Of the choice.
    """
    draw = random.Random(seed)
    pieces = (*CONTROL, *SYNTAX, *WORDS)
    for _ in range(count):
        parts = draw.choices(pieces, k=draw.randint(1, 6))
        if draw.random() < 0.3:
            parts.append(
                chr(draw.choice((draw.randrange(1, 0xD800), draw.randrange(0xE000, 0x110000))))
            )
        if draw.random() < 0.4:  # of names with control characters alone few would be taken
            parts = ["".join(part for part in parts if part.isprintable()) or "x"]
        yield "".join(parts) * (draw.randint(100, 1000) if draw.random() < 0.01 else 1)

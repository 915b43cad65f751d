"""Training data: a JSON Lines file of prompts and their answers' lengths."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.kit.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Row:
    """One answer.

    Attributes:
        model: The served model.
        prompt: Text of the prompt.
        tokens: Length of the answer, tokens.
        truncated: Whether the answer was cut off there.
    """

    model: str
    prompt: str
    tokens: int
    truncated: bool = False


def read(file: Path) -> list[Row]:
    """Return the answers of a file with `{"model", "prompt", "output_tokens"}` a line.

    `"finish_reason": "length"` marks an answer that was cut off.

    Raises:
        InvalidArgument: The file cannot be read, is empty, or has an invalid line.
    """
    try:
        with file.open(encoding="utf-8", errors="surrogateescape") as lines:
            rows = [
                _row(line, f"{file}:{number}")
                for number, line in enumerate(lines, 1)
                if line.strip()
            ]
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}", field="data") from error
    if not rows:
        raise InvalidArgument(f"{file}: no answers in it", field="data")
    return rows


def split(rows: Iterable[Row], test_share: float, seed: int) -> tuple[list[Row], list[Row]]:
    """Return rows to train with and to test with: no prompt is in both.

    Args:
        rows: All rows.
        test_share: Share of the prompts to test with, 0..1.
        seed: Seed of the choice.
    """
    everything = list(rows)
    prompts = sorted({row.prompt for row in everything})
    order = np.random.default_rng(seed).permutation(len(prompts))
    tested = {prompts[index] for index in order[: round(test_share * len(prompts))]}
    return (
        [row for row in everything if row.prompt not in tested],
        [row for row in everything if row.prompt in tested],
    )


def by_model(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each served model, models in alphabetical order."""
    models: dict[str, list[Row]] = {model: [] for model in sorted({row.model for row in rows})}
    for row in rows:
        models[row.model].append(row)
    return models


def _row(line: str, where: str) -> Row:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"{where}: not JSON: {error}", field="data") from error
    if not isinstance(found, dict):
        raise InvalidArgument(f"{where}: must be an object", field="data")
    for key, kind in (("model", str), ("prompt", str), ("output_tokens", int)):
        value = found.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidArgument(f"{where}: {key}: {kind.__name__} required", field="data")
    if found["output_tokens"] < 0:
        raise InvalidArgument(f"{where}: output_tokens: must be >= 0", field="data")
    truncated = found.get("finish_reason") == "length"
    return Row(found["model"], found["prompt"], found["output_tokens"], truncated)

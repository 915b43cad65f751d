"""Trains the predictor that ships.

python -m benchmarks.generative.shipped --data DIR [--out DIR]

The data's DIR has the files of `SOURCES`: JSON Lines of prompts and answers' lengths whose licences
allow a model trained on them to ship. The mean of the prompts' vectors is computed first, and
subtracted from the vectors that the predictor is trained on. Equal files give equal predictors, on
the same kind of machine.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from services.predictor.adapters.proxy_model import DEFAULT
from services.predictor.embedding.minilm import CENTRE, SIZE, MiniLm, Vector
from services.predictor.training.core.fit import fit
from services.predictor.training.core.rows import Row, read
from services.predictor.training.export import to_onnx

SOURCES = {
    "oasst_eval.jsonl": "Open-Assistant/oasst-model-eval, Apache-2.0",
    "gpteacher.jsonl": "teknium1/GPTeacher, MIT",
    "arena_hard.jsonl": "lmarena/arena-hard-auto, Apache-2.0",
}
"""Training data with its licence; data may only be added with one."""


def main() -> None:
    """Train, and write the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generative.shipped")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, default=DEFAULT.parent, metavar="DIR")
    arguments = parser.parse_args()
    rows = [row for name in sorted(SOURCES) for row in read(arguments.data / name)]
    centre = _centre(rows)
    arguments.out.mkdir(parents=True, exist_ok=True)
    np.save(arguments.out / CENTRE.name, centre)
    (arguments.out / DEFAULT.name).write_bytes(to_onnx(fit(rows, MiniLm(centre).embed)))


def _centre(rows: Iterable[Row]) -> Vector:
    """Return the mean of the prompts' vectors."""
    embed = MiniLm(np.zeros(SIZE, np.float32)).embed
    vectors = [embed(prompt) for prompt in dict.fromkeys(row.prompt for row in rows)]
    return np.asarray(np.mean(vectors, axis=0, dtype=np.float64), np.float32)


if __name__ == "__main__":
    main()

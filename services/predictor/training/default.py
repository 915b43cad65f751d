"""Trains the predictor that ships.

python -m services.predictor.training.default --data DIR [--out FILE]

DIR has the files of `SOURCES`: JSON Lines of prompts and answers' lengths whose licences allow a
model trained on them to ship. Equal files train an equal predictor, on the
same kind of machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from services.predictor.embedding.minilm import MiniLm
from services.predictor.proxy import DEFAULT
from services.predictor.training.export import to_onnx
from services.predictor.training.fit import fit
from services.predictor.training.rows import read

SOURCES = {
    "oasst_eval.jsonl": "Open-Assistant/oasst-model-eval, Apache-2.0",
    "gpteacher.jsonl": "teknium1/GPTeacher, MIT",
    "arena_hard.jsonl": "lmarena/arena-hard-auto, Apache-2.0",
}
"""What it is trained on, and under which licence. Nothing else may be added without one."""


def main() -> None:
    """Train, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m services.predictor.training.default")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--out", type=Path, default=DEFAULT, metavar="FILE")
    arguments = parser.parse_args()
    rows = [row for name in sorted(SOURCES) for row in read(arguments.data / name)]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_bytes(to_onnx(fit(rows, MiniLm().embed)))


if __name__ == "__main__":
    main()

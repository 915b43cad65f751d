"""Coverage-guided fuzzing of a border (tests/support/borders.py), with atheris.

    make fuzz BORDER=join SECONDS=60

Inputs that were new are kept in out/fuzz/BORDER; one that is a bug is written beside them, and the
exit status is not 0.
"""

import sys
from pathlib import Path

import atheris
import structlog

with atheris.instrument_imports(include=["services"]):
    from tests.support.borders import borders


structlog.configure(logger_factory=structlog.ReturnLoggerFactory())


def main(name: str, seconds: str) -> None:
    """Fuzz one border."""
    border, corpus = borders()[name], Path("out/fuzz") / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(border.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    flags = (f"-max_total_time={seconds}", "-timeout=5", f"-artifact_prefix={corpus}/bug-")
    atheris.Setup([sys.argv[0], *flags, str(corpus)], border)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])

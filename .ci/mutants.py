#!/usr/bin/env python3
"""Print how many mutants of each core module the tests noticed, and those that they did not.

    .ci/mutants.py [--survivors] [PART OF A PATH ...]     # after `make mutants`

A mutant that ran out of time counts neither way: on a busy machine any may. Returns 1 where a
module has fewer than MIN_KILLED of the others noticed. `pyproject.toml` names the modules.
"""

import argparse
import json
import sys
from pathlib import Path

from mutmut.mutation.diff_apply import get_diff_for_mutant

MIN_KILLED = 0.9
UNNOTICED = {0: "survived", 5: "no test", 33: "no test", None: "not run"}
"""By exit code of the tests; anything else is a failure or a crash, or one of TIMEOUTS."""
TIMEOUTS = {-24, 24, 36, 152, 255}


def main() -> int:
    """Print a line for each module."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("parts", nargs="*", help="only modules with one of these in their path")
    parser.add_argument("--survivors", action="store_true", help="each mutant that was not noticed")
    given = parser.parse_args()
    low = False
    for path in sorted(Path("mutants").rglob("*.py.meta")):
        module = path.relative_to("mutants").with_suffix("")
        codes = json.loads(path.read_text())["exit_code_by_key"]
        if not codes or not any(part in str(module) for part in given.parts or [""]):
            continue
        left = {name: UNNOTICED[code] for name, code in codes.items() if code in UNNOTICED}
        late = sum(code in TIMEOUTS for code in codes.values())
        ended = len(codes) - late
        killed = (ended - len(left)) / ended if ended else 0.0
        low |= killed < MIN_KILLED
        print(f"{killed:6.1%}  {ended - len(left):4} of {ended:4}, {late:3} out of time  {module}")
        for name, why in left.items() if given.survivors else ():
            print(f"        {why}: {name}")
            print("\n".join(f"            {line}" for line in _changed(get_diff_for_mutant(name))))
    return low


def _changed(diff: str) -> list[str]:
    lines = diff.splitlines()
    return [line for line in lines if line[:1] in {"+", "-"} and line[:3] not in {"+++", "---"}]


if __name__ == "__main__":
    sys.exit(main())

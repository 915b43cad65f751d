"""A service whose wall clock is ahead of the machine's by what a file says.

    python shifted_clock.py FILE SERVICE serve ...

FILE holds seconds. The clock that services take as an argument is shifted; monotonic time is not.
libfaketime 0.9.10 cannot do that: under it, waits for CPython's global lock end at once, and
planners and agents spin instead of serving.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from services.cli.main import app
from services.kit.clock import RealClock


def main() -> None:
    """Run the command of the arguments that follow the file."""
    file = Path(sys.argv.pop(1))

    def now(_clock: RealClock) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=float(file.read_text()))

    RealClock.now = now  # type: ignore[assignment]
    app(prog_name="cinquefoil")


if __name__ == "__main__":
    main()

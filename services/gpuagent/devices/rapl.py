"""Energy of a machine's CPU packages, from the kernel's power capping tree.

Source: kernel `Documentation/power/powercap/powercap.rst`. Below the root lies a folder per zone,
`intel-rapl:0` and so on, AMD's too, with `name`, `energy_uj` and `max_energy_range_uj`. Zones named
`package-*` are summed: their `core` and `uncore` are part of them, `dram` and `psys` are left out,
and `intel-rapl-mmio:*` is the same package seen another way.

Since CVE-2020-8694 (the counter leaks secrets of other processes) only root reads `energy_uj`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from services.kit.errors import Unavailable
from services.kit.telemetry import logs

_log = logs.get("rapl")

_UJ_PER_J: Final = 1e6

ROOT: Final = Path("/sys/class/powercap")
"""Where the kernel has it; in a container only where the host's is mounted."""


@dataclass(slots=True)
class _Package:
    """One counter. Attributes: file, range_uj (it wraps there), last_uj, energy_uj (since made)."""

    file: Path
    range_uj: int
    last_uj: int
    energy_uj: int = 0

    @classmethod
    def of(cls, zone: Path) -> Self:
        return cls(
            zone / "energy_uj", _number(zone / "max_energy_range_uj"), _number(zone / "energy_uj")
        )

    def read(self) -> int:
        """Return the energy since the first reading, uJ."""
        now_uj = _number(self.file)
        grown_uj = now_uj - self.last_uj
        self.energy_uj += grown_uj if grown_uj >= 0 else grown_uj + self.range_uj
        self.last_uj = now_uj
        return self.energy_uj


class Rapl:
    """The packages of this machine, as a meter that begins at 0.

    A counter that wraps is carried on. Two wraps between readings are seen as one: read it at least
    once a minute (a package at 1 kW takes 65 s for the smallest range that CPUs have, 65 kJ).

    Args:
        packages: One or more; see `find`.
    """

    def __init__(self, packages: Sequence[_Package]) -> None:
        self._packages = tuple(packages)

    @classmethod
    def find(cls, root: Path = ROOT) -> Rapl | None:
        """Return the machine's packages, or None where there are none to be read; the log says why.

        Args:
            root: Folder of the zones.
        """
        zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _is_package(zone)]
        if not zones:
            _log.info("no RAPL here: CPU energy is modelled", root=str(root))
            return None
        try:
            return cls([_Package.of(zone) for zone in zones])
        except PermissionError:
            _log.warning(
                "may not read RAPL: CPU energy is modelled. Since CVE-2020-8694 only root reads "
                "energy_uj; let the agent's user read it, see docs/energy.md",
                root=str(root),
            )
        except (OSError, ValueError) as error:
            _log.warning("cannot read RAPL: CPU energy is modelled", error=str(error))
        return None

    def energy_j(self) -> float:
        """Return the packages' energy since `find`, J; it never falls.

        Raises:
            Unavailable: A counter cannot be read now.
        """
        try:
            return sum(package.read() for package in self._packages) / _UJ_PER_J
        except (OSError, ValueError) as error:
            raise Unavailable(f"cannot read RAPL: {error}", reason="NO_RAPL") from error


def _is_package(zone: Path) -> bool:
    try:
        return (zone / "name").read_text().startswith("package-")
    except OSError:
        return False


def _number(file: Path) -> int:
    return int(file.read_text())

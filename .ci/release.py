#!/usr/bin/env python3
"""Give the project a version, and prove that a version is fit to be released.

    .ci/release.py set 0.3.0    # writes the version wherever it stands; pyproject.toml owns it
    .ci/release.py check        # versions, changelog, protos, sdists, wheels, an install, the demo

`check` takes about four minutes: it builds both distributions, builds the wheels again from the
sdists, installs them into an empty environment and runs `cinquefoil demo` in an empty folder.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
MAX_CHANGELOG_LINES: Final = 60

PLACES: Final = (
    ("pyproject.toml", r'^version = "(.+)"$'),
    ("pyproject.toml", r'"cinquefoil-protos==(.+)"'),
    ("protos/pyproject.toml", r'^version = "(.+)"$'),
    ("deploy/helm/cinquefoil/Chart.yaml", r"^version: (.+)$"),
    ("deploy/helm/cinquefoil/Chart.yaml", r"^appVersion: (.+)$"),
    ("docs/kubernetes.md", r"registry\.example/cinquefoil[\w$-]*:([\d.]+\d)"),
)
"""Files that state the version, each with a pattern whose group is the version."""


def main(arguments: list[str]) -> int:
    """Run one of the two commands; return the exit status."""
    match arguments:
        case ["set", version] if re.fullmatch(r"\d+\.\d+\.\d+", version):
            for name, pattern in PLACES:
                _replace(ROOT / name, pattern, version)
            return 0
        case ["check"]:
            return _check()
    sys.stderr.write(__doc__ or "")
    return 2


def owner() -> str:
    """Return the version that pyproject.toml states."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def versions() -> Iterator[str]:
    """Yield each place that states another version than pyproject.toml."""
    wanted = owner()
    for name, pattern in PLACES:
        found = re.findall(pattern, (ROOT / name).read_text(), re.MULTILINE)
        if not found:
            yield f"{name}: no version found by {pattern}"
        yield from (f"{name}: {each}, not {wanted}" for each in found if each != wanted)


def changelog() -> Iterator[str]:
    """Yield each fault of the changelog: no dated section, changes not in it, or one too long."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    if not any(re.fullmatch(re.escape(owner()) + r" - \d{4}-\d\d-\d\d", each) for each in titles):
        yield f"CHANGELOG.md: no section `## {owner()} - YYYY-MM-DD`"
    for title, section in zip(titles, sections, strict=True):
        lines = len(section.strip().splitlines())
        if lines > MAX_CHANGELOG_LINES:
            yield f"CHANGELOG.md: {title} has {lines} lines, at most {MAX_CHANGELOG_LINES}"
        if title == "Unreleased" and lines > 1:
            yield f"CHANGELOG.md: {lines - 1} lines are unreleased: they belong under {owner()}"


def protos() -> Iterator[str]:
    """Yield the fault of a snapshot of the protos that is not this version's, as they are now."""
    snapshot = ROOT / "protos/released" / f"{owner()}.txtpb"
    with tempfile.TemporaryDirectory() as folder:
        now = Path(folder) / "now.txtpb"
        _run(ROOT / ".venv/bin/buf", "build", "protos", "--exclude-source-info", "-o", now)
        if not snapshot.is_file() or snapshot.read_bytes() != now.read_bytes():
            yield f"{snapshot.relative_to(ROOT)}: not as the protos are: `make protos-released`"


def distributions() -> Iterator[str]:
    """Yield the first step that fails from the sources to a demo from installed wheels."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        steps = (
            ("an environment to build in", lambda: _environment(work / "build")),
            (
                "sdists",
                lambda: _build(work / "build", work / "sdists", "sdist", ROOT, ROOT / "protos"),
            ),
            ("wheels from the sdists", lambda: _wheels(work)),
            ("an empty environment", lambda: _environment(work / "empty", groups=())),
            ("an install of the wheels", lambda: _install(work / "empty", work / "wheels")),
            ("its version", lambda: _version(work / "empty")),
            ("the demo", lambda: _demo(work)),
        )
        for name, step in steps:
            print(f"  {name}", flush=True)
            try:
                step()
            except (subprocess.CalledProcessError, RuntimeError) as error:
                yield f"{name}: {error}"
                return


def _check() -> int:
    faults: list[str] = []
    parts: tuple[Callable[[], Iterator[str]], ...] = (versions, changelog, protos, distributions)
    for part in parts:
        print(f"{part.__name__}:", flush=True)
        found = list(part())
        print("".join(f"  {fault}\n" for fault in found) or "  fine\n", end="", flush=True)
        faults += found
        if part is protos and faults:
            break  # what is built would be another version
    print(f"{owner()}: {'not fit to be released' if faults else 'fit to be released'}")
    return 1 if faults else 0


def _replace(path: Path, pattern: str, version: str) -> None:
    text = path.read_text()

    def replaced(match: re.Match[str]) -> str:
        start, end = match.span(1)
        return text[match.start() : start] + version + text[end : match.end()]

    path.write_text(re.sub(pattern, replaced, text, flags=re.MULTILINE))


def _environment(folder: Path, groups: tuple[str, ...] = ("build",)) -> None:
    _run(sys.executable, "-m", "venv", folder)
    _pip(folder, "--upgrade", "pip")  # older ones know no groups
    for group in groups:
        _pip(folder, "--group", f"{ROOT / 'pyproject.toml'}:{group}")


def _build(environment: Path, out: Path, kind: str, *sources: Path) -> None:
    for source in sources:
        _run(
            environment / "bin/python", "-m", "hatchling", "build", "-t", kind, "-d", out, at=source
        )


def _wheels(work: Path) -> None:
    for sdist in sorted((work / "sdists").iterdir()):
        _run("tar", "-xzf", sdist, "-C", work)
        _build(work / "build", work / "wheels", "wheel", work / sdist.name.removesuffix(".tar.gz"))


def _install(environment: Path, wheels: Path) -> None:
    _pip(environment, *map(str, sorted(wheels.iterdir())))


def _version(environment: Path) -> None:
    printed = _run(environment / "bin/cinquefoil", "--version").strip()
    if printed != f"cinquefoil {owner()}":
        raise RuntimeError(f"the installed command says {printed!r}, not {owner()}")


def _demo(work: Path) -> None:
    folder = work / "demo"
    folder.mkdir()
    _run(work / "empty/bin/cinquefoil", "demo", at=folder)
    if not (folder / "out/demo/report.json").is_file():
        raise RuntimeError("no out/demo/report.json")


def _pip(environment: Path, *arguments: str) -> None:
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run(environment / "bin/python", *pip, "--constraint", ROOT / "constraints.txt", *arguments)


def _run(*command: object, at: Path = ROOT) -> str:
    """Return what a command prints; its output is shown where it fails."""
    done = subprocess.run(
        [str(part) for part in command], cwd=at, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`cinquefoil doctor`: every check, a line each."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from services.cli.console.output import print_json
from services.cli.doctor.deployment import deployment_file, surroundings
from services.cli.doctor.environment import environment
from services.cli.doctor.finding import Finding, Verdict
from services.cli.doctor.machine import machine
from services.kit.config import Mps

_MARKS: Final = {
    Verdict.FINE: ("ok  ", "green"),
    Verdict.NOTE: ("note", "yellow"),
    Verdict.BAD: ("BAD ", "red"),
}


def doctor(config: Path, *, as_json: bool) -> bool:
    """Print the findings; return whether none is bad.

    Args:
        config: Deployment file; without one only the machine is checked.
        as_json: Print JSON instead of lines.
    """
    deployment, found = deployment_file(config)
    findings = [*found]
    if deployment is not None:
        findings += surroundings(deployment)
        with suppress(ModuleNotFoundError):  # an image has one service's libraries
            from services.cli.doctor.sources import sources  # noqa: PLC0415

            findings += sources(deployment)
    findings += environment(deployment)
    nodes = deployment.nodes.values() if deployment is not None else ()
    needs_gpu = any(node.simulated is None and node.cpu is None for node in nodes)
    binary = next((node.mps.control_binary for node in nodes if node.mps), Mps().control_binary)
    findings += machine(binary, needs_gpu=needs_gpu, deployment=deployment)
    if as_json:
        print_json(findings)
    else:
        for line in lines(findings):
            Console().print(line, soft_wrap=True)
    return all(each.verdict is not Verdict.BAD for each in findings)


def lines(findings: Sequence[Finding]) -> Iterator[Text]:
    """Yield a line for each finding: mark, subject, finding, and remedy."""
    width = max((len(each.subject) for each in findings), default=0)
    for each in findings:
        mark, style = _MARKS[each.verdict]
        remedy = f" -> {each.remedy}" if each.remedy else ""
        yield Text.assemble(
            (mark, style), f"  {each.subject.ljust(width)}  {each.found}", (remedy, "bold")
        )

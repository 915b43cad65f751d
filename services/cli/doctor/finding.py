"""Findings of the doctor's checks."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """Verdict of a check."""

    FINE = "fine"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line.

    Attributes:
        subject: Subject of the check, for example "driver".
        verdict: Verdict. NOTE: a limitation.
        found: Finding, a sentence.
        remedy: Remedy; "": none is needed.
    """

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def fine(subject: str, found: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(subject, Verdict.FINE, found)


def note(subject: str, found: str, remedy: str) -> Finding:
    """Return a limitation."""
    return Finding(subject, Verdict.NOTE, found, remedy)


def bad(subject: str, found: str, remedy: str) -> Finding:
    """Return a problem that keeps the deployment from working here."""
    return Finding(subject, Verdict.BAD, found, remedy)

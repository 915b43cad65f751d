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
        subject: What was looked at, for example "driver".
        verdict: How good it is. NOTE: it limits what can be done here.
        found: What was found, a sentence.
        remedy: What to do; "": nothing.
    """

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def fine(subject: str, found: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(subject, Verdict.FINE, found)


def note(subject: str, found: str, remedy: str) -> Finding:
    """Return a limitation."""
    return Finding(subject, Verdict.NOTE, found, remedy)


def bad(subject: str, found: str, remedy: str) -> Finding:
    """Return what keeps the deployment from working here."""
    return Finding(subject, Verdict.BAD, found, remedy)

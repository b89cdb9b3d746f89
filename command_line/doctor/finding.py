"""The result of a check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    `problem`: the default configuration cannot run. `warning`: something else cannot run, or will be slow.
    `advice` says what to do, and is empty only if the verdict is ok.
    """

    subject: str
    verdict: Verdict
    found: str
    advice: str = ""


def can_run(findings: list[Finding]) -> bool:
    """Whether the default configuration can run on this machine."""
    return all(finding.verdict != "problem" for finding in findings)


def gigabytes(count: float) -> str:
    """A number of bytes as text; 1 GB is 10^9 bytes."""
    return f"{count / 1e9:,.1f} GB"

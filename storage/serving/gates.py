"""Verdicts of gates: whether a checkpoint may serve, and the numbers that say so."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from storage.serving.records import append_record, read_records
from storage.serving.traffic import serving_folder


class Verdict(BaseModel):
    """A new checkpoint, compared with the one that served."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint_id: str
    against: str
    """The checkpoint that it was compared with."""
    run: str
    """The run that has made the new checkpoint."""
    passed: bool
    reason: str
    """In words, with the numbers that decided."""
    numbers: dict[str, float | int | str | bool]
    decided: datetime


def gate_file(store_uri: str, run: str) -> Path:
    """The file with the verdicts of a served run's gate."""
    return serving_folder(store_uri, run) / "gates.jsonl"


def verdicts(store_uri: str, run: str) -> list[Verdict]:
    """All verdicts, the oldest first. Raises DamagedRecord as `read_records`."""
    return read_records(gate_file(store_uri, run), Verdict)


def record_verdict(store_uri: str, run: str, verdict: Verdict) -> None:
    """Append a verdict. The run has to be locked."""
    append_record(gate_file(store_uri, run), verdict)

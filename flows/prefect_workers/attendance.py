"""What a worker does from its start to its end, whoever started its process."""

from __future__ import annotations

from dataclasses import dataclass

from flows.keyed_connection import Refused, dial
from flows.prefect_workers.questions import answer_questions
from flows.prefect_workers.reception import Invitation
from flows.stage_process import compute_stages
from storage.wording import counted


@dataclass(frozen=True)
class Attended:
    """How it ended, in words."""

    good: bool
    message: str


def attend(invitation: Invitation) -> Attended:
    """Dial in to a driver and compute its stages. If the driver is lost meanwhile, this process ends."""
    where = f"the driver at {invitation.address}"
    try:
        line = dial(invitation.address, bytes.fromhex(invitation.key))
    except (OSError, Refused) as error:
        return Attended(
            False,
            f"{where} cannot be reached ({error}). If the run has ended, this is in order; else check "
            "runner.address, and that nothing between the machines blocks it",
        )
    try:
        line.send_bytes(invitation.ticket.encode())
        wanted = answer_questions(line)
    except (EOFError, OSError):
        return Attended(False, f"{where} has ended, or does not expect this worker any more")
    if not wanted:
        line.close()
        return Attended(True, f"{where} needed no worker")
    # The connection ends only with this process, so the driver sees when that is.
    return Attended(True, f"computed {counted(compute_stages(line), 'stage')}")

"""Where the rows of collected traffic come from: a table beside them, one row for each trajectory."""

from dataclasses import dataclass

from storage.tables.parquet import TableFormat, schema_of

COLLECT_STAGE = "collect_traffic"
"""Stage of an artifact of kind `trajectories` that holds settled traffic of a served run."""
SERVED = "served.parquet"
"""File of that table in the artifact, beside the trajectories."""


@dataclass(frozen=True)
class ServedTrajectory:
    """What served traffic a trajectory was made of."""

    trajectory_id: str
    episode_id: str
    """The episode as clients know it."""
    user: str
    """A keyed digest of the user's name; empty where none was named."""
    tenant: str
    """Whose key it was."""
    alias: str
    """The alias whose checkpoint answered."""
    turn_ids: tuple[str, ...]
    """Turns in the log that it is made of, in their order."""
    call_ids: tuple[str, ...]
    """Their calls, as clients know them."""
    feedback_ids: tuple[str, ...]
    """Feedback on the episode."""
    not_trainable: str
    """Why nothing can be learned from it, such as that nobody rated it; empty where it can."""


SERVED_TRAJECTORIES = TableFormat(
    name="served trajectories",
    version=1,
    schema=schema_of(ServedTrajectory),
    dictionary=("episode_id", "user", "tenant", "alias", "not_trainable"),
)


def traffic_run(run: str) -> str:
    """Name of the run that holds the collected traffic of a served run, one batch an iteration."""
    return f"{run}-traffic"

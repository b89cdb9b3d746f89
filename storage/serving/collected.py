"""Where the rows of collected traffic come from, and what people would have answered: tables beside them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.tables.parquet import TableFormat, read_rows, schema_of

COLLECT_STAGE = "collect_traffic"
"""Stage of an artifact of kind `trajectories` that holds settled traffic of a served run."""
_TRAFFIC = "-traffic"
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

CORRECTIONS = "corrections.parquet"
"""File of corrected answers in the artifact, where they were asked for and there are some."""


@dataclass(frozen=True)
class ServedCorrection:
    """What somebody says that an answer should have been."""

    feedback_id: str
    """The feedback that corrects it."""
    trajectory_id: str
    """The row with the answer that is corrected."""
    call_id: str
    """The call of that answer, as clients know it."""
    messages_before: int
    """Messages of the row before that answer."""
    tokens_before: int
    """Response tokens of the row before that answer; its prompt tokens come before them."""
    text: str
    """What should have been said; empty once its user was forgotten."""


SERVED_CORRECTIONS = TableFormat(
    name="served corrections",
    version=1,
    schema=schema_of(ServedCorrection),
    dictionary=(),
)


def collected_rows(rollouts: Artifact, store: ArtifactStore, table: TableFormat) -> Iterator[dict[str, Any]]:
    """The rows of one of these tables, in the order of the shards of collected rollouts."""
    shards = [store.open(each) for _, each in sorted(rollouts.manifest.inputs.items())]
    return read_rows([path for each in shards for path in each.rows_paths(table.name)], table)


def traffic_run(run: str) -> str:
    """Name of the run that holds the collected traffic of a served run, one batch an iteration."""
    return run + _TRAFFIC


def may_be_traffic_run(run: str) -> bool:
    """Whether a run has the name of one that holds traffic."""
    return run.endswith(_TRAFFIC)

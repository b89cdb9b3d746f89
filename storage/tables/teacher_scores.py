"""What a policy says of its own tokens when it knows more: the scores of self-distillation, in Parquet."""

from dataclasses import dataclass

from storage.tables.parquet import TableFormat, schema_of


@dataclass(frozen=True)
class TeacherScores:
    """The scores of one trajectory. The lists have one value for each response token, 0 where the policy did
    not sample it; they are empty where nothing was scored."""

    trajectory_id: str
    source_trajectory_id: str | None
    """The trajectory whose text the prompt also held: a reflection, or another attempt. That of the
    trajectory itself for feedback on it."""
    not_scored: str
    """Why nothing was scored; empty where it was."""
    logprobs: tuple[float, ...] = ()
    """In nats, after the temperature that sampled, behind the prompt with hindsight."""
    advantages: tuple[float, ...] = ()
    """What is added to the advantage of each token."""


TEACHER_SCORES = TableFormat(
    name="teacher scores",
    version=1,
    schema=schema_of(TeacherScores),
    dictionary=("not_scored",),
    float_lists=("logprobs.list.element", "advantages.list.element"),
)

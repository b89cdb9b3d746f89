"""Numbers of replay that tables and reports show."""

from erl_pipeline.plan.column import ChartLine, Column, Headline, only_drawn
from erl_pipeline.stages.training.replay.index_experience import INDEX_EXPERIENCE
from erl_pipeline.stages.training.replay.select_replay import SELECT_REPLAY
from erl_pipeline.stages.training.update_policy import UPDATE_POLICY

COLUMNS = (
    Column(
        SELECT_REPLAY.name,
        "replayed",
        "replayed",
        "stored attempts that were replayed",
        ",d",
        adds_up=True,
        headline=Headline(
            "Replayed", "total", "stored attempts; {tokens_saved} tokens were not sampled again"
        ),
    ),
    Column(
        SELECT_REPLAY.name,
        "age_mean",
        "age",
        "mean age of what was replayed, in iterations",
        ".1f",
        title="age of replay",
        drawn=ChartLine("Age of replayed attempts", "mean", "iterations"),
    ),
    Column(
        INDEX_EXPERIENCE.name,
        "trajectories",
        "stored",
        "attempts that can be replayed",
        ",d",
        drawn=ChartLine("Experience", "attempts", "stored"),
        headline=Headline("Experience", "newest", "attempts stored after the last iteration"),
    ),
)

_ENTROPY = "Entropy of stored attempts under the policy at hand"
_WEIGHT = "Replayed tokens: ratio to the stored policy, and weight in the loss"
_TASKS = "Tasks in the experience"
_OF_REPLAY = "replayed_sequences"
CHARTS = (
    only_drawn(INDEX_EXPERIENCE.name, "tasks", ChartLine(_TASKS, "can be replayed", "tasks"), format=",d"),
    only_drawn(INDEX_EXPERIENCE.name, "retired", ChartLine(_TASKS, "retired", "tasks"), format=",d"),
    *(
        only_drawn(SELECT_REPLAY.name, metric, line)
        for metric, line in (
            ("share_replayed", ChartLine("Share of tasks replayed", "replayed", "share")),
            ("entropy_picked", ChartLine(_ENTROPY, "replayed", "nats a token")),
            ("entropy_candidates", ChartLine(_ENTROPY, "all candidates", "nats a token")),
        )
    ),
    *(
        only_drawn(UPDATE_POLICY.name, metric, line, only_with=_OF_REPLAY)
        for metric, line in (
            ("replay_ratio_mean", ChartLine(_WEIGHT, "ratio w", "mean")),
            ("replay_weight_mean", ChartLine(_WEIGHT, "weight", "mean")),
            ("replay_loss", ChartLine("Policy-gradient loss", "replayed", "loss")),
            ("fresh_loss", ChartLine("Policy-gradient loss", "fresh", "loss")),
        )
    ),
)

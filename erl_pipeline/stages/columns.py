"""Numbers of the shared stages that methods show."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from erl_pipeline.config.distillation import Form
from erl_pipeline.config.experience import ExperienceConfig
from erl_pipeline.plan.column import ChartLine, Column, Headline, only_drawn
from erl_pipeline.stages import extractor_columns as extractor
from erl_pipeline.stages import replay_columns as replay
from erl_pipeline.stages.evaluation.evaluate import EVALUATE
from erl_pipeline.stages.memory import INDEX_MEMORY
from erl_pipeline.stages.rollouts.counts import reason_counter
from erl_pipeline.stages.rollouts.generate_rollouts import GENERATE_ROLLOUTS
from erl_pipeline.stages.training.advantages import GROUPS, ZERO_ADVANTAGE_GROUPS
from erl_pipeline.stages.training.distillation import BUILD_DISTILLATION, FINE_TUNE
from erl_pipeline.stages.training.update_policy import UPDATE_POLICY
from storage.tables.scored import NotScored

_STEPS, _SUCCESS = "optimizer_steps", "success_"

ENTRIES = Column(
    INDEX_MEMORY.name,
    "entries",
    "memory",
    "entries in the memory",
    ",d",
    drawn=ChartLine("Memory", "entries", "entries"),
    headline=Headline("Memory", "newest", "entries after the last iteration"),
)
LOSS = Column(
    UPDATE_POLICY.name,
    "policy_loss",
    "RL loss",
    "loss of the reinforcement-learning update",
    "+.4f",
    only_with=_STEPS,
    drawn=ChartLine("Policy-gradient loss", "policy", "loss"),
)
DISTILLED = Column(
    BUILD_DISTILLATION.name,
    "sft_rows",
    "SFT",
    "rows distilled",
    ",d",
    title="distilled",
    drawn=ChartLine("Distilled examples", "examples", "examples"),
    headline=Headline("Distilled", "total", "successful retries, trained on with the first prompt"),
)
HELD_OUT = Column(
    EVALUATE.name,
    "greedy_success",
    "held-out",
    "success rate of greedy first attempts on held-out tasks",
    compare=True,
    title="held-out success",
    share=True,
    interval=True,
    drawn=ChartLine(
        "Held-out success", "greedy first attempt", "success", "Band: 95 % Wilson interval of greedy attempts"
    ),
)
HELD_OUT_SAMPLED = Column(
    EVALUATE.name,
    "sampled_success",
    "held-out sampled",
    "success rate of sampled first attempts on held-out tasks",
    share=True,
    interval=True,
    in_tables=False,
    drawn=ChartLine("Held-out success", "sampled first attempt", "success"),
)
TOKENS = Column(
    GENERATE_ROLLOUTS.name,
    "generated_tokens",
    "tokens",
    "tokens generated",
    ",d",
    compare=True,
    title="generated tokens",
    adds_up=True,
    headline=Headline("Generated tokens", "total", "in {episodes} training episodes"),
)
TOKENS_PER_SECOND = Column(
    GENERATE_ROLLOUTS.name,
    "tokens_per_second",
    "tokens/s",
    "tokens generated in a second of a worker's rollouts",
    ",.0f",
)


def _held_out(metric: str, words: str, meaning: str) -> Column:
    return Column(
        EVALUATE.name,
        metric,
        words,
        meaning,
        title=words,
        share=True,
        interval=True,
        drawn=ChartLine("Held-out success", words, "success"),
    )


def success_of(role: str, label: str, meaning: str, drawn: ChartLine, *, headline: str = "") -> Column:
    """The success rate of a role's trajectories in training. `headline`: name of the figure at the head of a
    report; empty for none."""
    words = role.replace("_", " ")
    return Column(
        GENERATE_ROLLOUTS.name,
        f"{_SUCCESS}{role}",
        label,
        meaning,
        compare=True,
        title=f"{words}s",
        share=True,
        drawn=drawn,
        headline=Headline(headline, "change", f"{words}s in training") if headline else None,
    )


def success_of_first_attempts(role: str, meaning: str) -> Column:
    """The success rate of the attempts that every episode begins with."""
    drawn = ChartLine("Success in training", "first attempt", "success", "Share of sampled episodes")
    return success_of(role, "1st", meaning, drawn)


def with_reward(columns: Iterable[Column]) -> Iterator[Column]:
    """The columns, and after the first success rate in training, that of the attempts that every episode
    begins with, the mean reward of these."""
    missing = True
    for column in columns:
        yield column
        role = column.metric.removeprefix(_SUCCESS)
        if missing and column.stage == GENERATE_ROLLOUTS.name and role != column.metric:
            missing = False
            yield Column(
                GENERATE_ROLLOUTS.name,
                f"reward_{role}",
                "reward",
                "mean reward of these attempts; blank where each is 0 or 1",
            )


def with_groups(
    own: Iterable[Column], *, replays: bool, form: Form, lessons: ExperienceConfig | None = None
) -> Iterator[Column]:
    """The columns of a method with its rewards, and around the loss of the update those of replay,
    of distillation, and of an extractor with its lessons."""
    for column in with_reward(own):
        if column is LOSS and lessons is not None:
            yield from (*extractor.HALVES, ENTRIES)
            if lessons.extractor.train:
                yield extractor.TRAINED
        if column is LOSS and replays:
            yield from replay.COLUMNS
        yield column
        if column is LOSS and form != "off":
            yield DISTILLED
    if replays:
        yield from replay.CHARTS
    if lessons is not None:
        yield from extractor.CHARTS
    if form == "separate":
        yield from FINE_TUNE_CHARTS


_REASONS: Mapping[NotScored, tuple[str, str]] = {
    "environment_error": ("env. error", "the environment failed"),
    "environment_timeout": ("timeout", "the environment missed a deadline"),
    "scorer_error": ("scorer error", "their scorer failed"),
    "not_rated": ("not rated", "nobody rated them"),
    "not_trainable": ("not trainable", "their tokens cannot be trained"),
}
NOT_SCORED_COLUMNS = (
    *(
        Column(
            GENERATE_ROLLOUTS.name,
            reason_counter(reason),
            label,
            f"attempts left out of everything, because {why}",
            ",d",
            adds_up=True,
        )
        for reason, (label, why) in _REASONS.items()
    ),
    Column(
        EVALUATE.name,
        "greedy_success_left_out",
        "held-out left out",
        "held-out tasks left out of the success rate, because the attempt was not scored",
        ",d",
    ),
)
"""How many attempts were left out, by reason; shown in tables of runs that have such attempts."""


def success_of_episodes(drawn: ChartLine) -> Column:
    """The share of training episodes that ended in success; for charts."""
    return Column(
        GENERATE_ROLLOUTS.name,
        "success_episode",
        "episodes",
        "share of episodes that ended in success",
        share=True,
        in_tables=False,
        drawn=drawn,
    )


def held_out_episodes(words: str) -> Column:
    """Success of whole greedy episodes on held-out tasks, where the configuration has them evaluated.
    `words`: what follows the first attempt, such as `with reflection`."""
    return _held_out("success_episode", words, f"success rate of whole greedy episodes {words}, no memory")


HELD_OUT_WITH_MEMORY = _held_out(
    "success_episode_with_memory", "with memory", "the same with the memory of that iteration"
)


def gain_of(role: str, label: str, meaning: str) -> Column:
    """How much better a role of later attempts does than other first attempts at the same task."""
    words = role.replace("_", " ")
    return Column(
        GENERATE_ROLLOUTS.name,
        f"gain_{role}",
        label,
        meaning,
        "+.3f",
        compare=True,
        title=f"gain of {words}s",
        interval=True,
        drawn=ChartLine(
            "Gain of retries",
            words,
            "success minus that of other first attempts",
            "Success of retries minus that of the same task's other first attempts; band: 95 % interval",
        ),
    )


def count_of(role: str, label: str, meaning: str) -> Column:
    """How many trajectories of a role an iteration has."""
    return Column(GENERATE_ROLLOUTS.name, f"{role}_count", label, meaning, ",d")


def groups_without_advantage(roles: Sequence[str]) -> tuple[Column, ...]:
    """How many groups of each role gave an update no signal: groups of one, or of equal rewards; for
    charts."""
    return tuple(
        only_drawn(
            UPDATE_POLICY.name,
            f"{ZERO_ADVANTAGE_GROUPS}_{role}",
            ChartLine(
                "Groups without advantage",
                role.replace("_", " "),
                "groups",
                "Groups of one or of equal rewards",
            ),
            only_with=f"{GROUPS}_{role}",
        )
        for role in roles
    )


_MISMATCH = "Difference of log-probabilities before the first step"
UPDATE_CHARTS = (
    only_drawn(
        UPDATE_POLICY.name,
        "kl_loss",
        ChartLine("KL to the reference", "KL", "nats a token"),
        only_with="kl_loss",
    ),
    *(
        only_drawn(UPDATE_POLICY.name, metric, line, only_with=_STEPS)
        for metric, line in (
            ("entropy", ChartLine("Entropy", "entropy", "nats a token")),
            ("grad_norm", ChartLine("Gradient norm", "reinforcement", "norm", "Before clipping")),
            ("clip_fraction", ChartLine("Clipped tokens", "clipped", "share")),
            ("mismatch_mean", ChartLine("Trainer against sampler", "mean", "nats", _MISMATCH)),
            ("mismatch_max", ChartLine("Trainer against sampler", "largest", "nats")),
        )
    ),
)
"""How steadily an update learned."""

FINE_TUNE_CHARTS = tuple(
    only_drawn(FINE_TUNE.name, metric, line, only_with=_STEPS)
    for metric, line in (
        ("first_loss", ChartLine("Supervised loss", "first step", "nats a token")),
        ("last_loss", ChartLine("Supervised loss", "last step", "nats a token")),
        ("grad_norm", ChartLine("Gradient norm", "supervised", "norm")),
    )
)
"""The same for supervised training."""


def training_columns(
    rollouts: Sequence[Column],
    *,
    held_out: Sequence[Column] = (),
    roles: Sequence[str] = (),
) -> tuple[Column, ...]:
    """The columns of a method, from left to right.

    Args:
        rollouts: what it shows of an iteration before the update.
        held_out: what it shows beside the success of first attempts on held-out tasks.
        roles: those whose groups without an advantage are drawn.
    """
    return (
        *rollouts,
        LOSS,
        HELD_OUT,
        HELD_OUT_SAMPLED,
        *held_out,
        TOKENS,
        TOKENS_PER_SECOND,
        *groups_without_advantage(roles),
        *UPDATE_CHARTS,
    )

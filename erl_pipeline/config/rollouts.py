"""Settings of a task's episodes: how tasks are chosen, how tokens are drawn, and the episodes that learn and
that evaluate."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from erl_pipeline.config.base import Settings, named

Failed = Literal["drop", "zero", "retry"]

_RETRIES = 2


class UniformSelection(Settings):
    """All tasks in a seeded order over successive iterations, then all again in another order."""

    type: Literal["uniform"] = "uniform"


class ResultSettings(Settings):
    """How the success of first attempts at a task is estimated from stored results."""

    prior: float = Field(default=0.5, ge=0.0, le=1.0)
    """The success that is expected for a task type before any of its tasks was tried."""
    prior_tries: float = Field(default=2.0, gt=0.0)
    """The expectation counts as much as this many tries. For a type it is `prior`; for a task it is the
    success of its type, so that a task that was never tried is expected to be like the others."""
    discount: float = Field(default=0.9, gt=0.0, le=1.0)
    """Each iteration with new results multiplies the weight of all earlier results by this, since the policy
    has changed. 1: all count the same."""


class ByDifficultySelection(Settings):
    """Tasks whose expected success is near a target are drawn more often. If all attempts of a group succeed,
    or all fail, the group gives no advantage."""

    type: Literal["by_difficulty"] = "by_difficulty"
    target: float = Field(default=0.5, ge=0.0, le=1.0)
    """The expected success of first attempts to aim for."""
    width: float = Field(default=0.2, ge=0.01)
    """A task's weight is exp(-(expected - target)^2 / (2 width^2))."""
    new: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of tasks drawn uniformly from those never tried, while there are any. The others are drawn by
    weight from those that were tried."""
    results: ResultSettings = ResultSettings()


class EasyToHardSelection(Settings):
    """Tasks are ordered from easy to hard, and a window moves over them: it begins with the easiest and ends
    with the hardest. All tasks in the window are equally likely to be drawn."""

    type: Literal["easy_to_hard"] = "easy_to_hard"
    by: Literal["environment", "results"] = "environment"
    """The order. `environment`: by the difficulty that the environment gives each task, such as the length of
    the shortest path. `results`: by the expected success of first attempts."""
    window: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of the tasks that are in the window; more if an iteration needs more."""
    over: int = Field(default=20, ge=2)
    """The iteration in which the window reaches the hardest tasks; it then stays there."""
    results: ResultSettings = ResultSettings()
    """Only with `by: results`."""


SelectionConfig = Annotated[
    Annotated[UniformSelection | ByDifficultySelection | EasyToHardSelection, Field(discriminator="type")],
    BeforeValidator(named),
]
"""How tasks are drawn; a bare name takes its defaults."""


def results_of(selection: SelectionConfig) -> ResultSettings | None:
    """How stored results are used; None if tasks are drawn without them."""
    if isinstance(selection, ByDifficultySelection):
        return selection.results
    if isinstance(selection, EasyToHardSelection) and selection.by == "results":
        return selection.results
    return None


class EpisodeConfig(Settings):
    """One iteration's episodes, without the choice of their tasks."""

    tasks_per_iteration: int = Field(default=16, ge=1)
    """Tasks drawn from the training set in each iteration, without replacement until all were drawn."""
    refill: int = Field(default=1, ge=1, le=16, exclude_if=lambda times: times == 1)
    """An iteration plays at most so many times `tasks_per_iteration` tasks: above 1, further shards are
    played while fewer than `tasks_per_iteration` groups have first attempts with different rewards, before
    any length penalty and within a subgroup where there are two, since other groups give no advantage
    (dynamic sampling of DAPO, arXiv 2503.14476, section 3.2). Shards that are not needed are committed empty.
    All that was sampled is kept and counted, in the run's tokens too. Each iteration draws all these tasks,
    so that what it does not play comes in a later round."""
    group_size: int = Field(default=8, ge=1)
    """Episodes of each task; their rewards are compared to give advantages (GRPO)."""
    success_threshold: float = Field(default=1.0, gt=0.0)
    """An attempt succeeds if its reward is at least this; a method retries only the others (the gate)."""
    step_seconds: float = Field(default=60.0, gt=0.0)
    """Deadline for each call of an environment. A call that misses it ends the attempt, which then has failed
    (see `failed`)."""
    failed: Failed = "drop"
    """What becomes of an attempt that the environment or its scorer failed, by an exception or a missed
    deadline. `drop`: its row is kept, with the reason, and left out of everything that is learned, compared,
    remembered or counted in a rate; so is the reflection that led to it. `zero`: where the environment failed
    it counts as an attempt of reward 0, and is trained so; what a scorer could not score is still dropped.
    `retry`: it is played again from its beginning, with the same seeds, in a new environment. As long as
    the environment answers the same, the policy's turns are those that it had sampled, so that a failure
    that does not happen again leaves no trace in the row. What fails each time is dropped."""
    retries: int = Field(default=_RETRIES, ge=1, le=10)
    """With `failed: retry`: how often an attempt is played again, at most."""
    tasks_per_shard: int = Field(default=16, ge=1)
    """Tasks in one shard. A shard is generated as a whole and committed, and is not generated again after an
    interruption."""

    @model_validator(mode="after")
    def _retries_only_where_asked_for(self) -> Self:
        if self.failed != "retry" and self.retries != _RETRIES:
            raise ValueError(f"retries: {self.retries}; it is only for failed: retry, not {self.failed}")
        return self

    @property
    def shards(self) -> int:
        """Shards of the tasks that are always played."""
        return -(-self.tasks_per_iteration // self.tasks_per_shard)

    @property
    def drawn_tasks(self) -> int:
        """The most tasks that an iteration plays."""
        return self.tasks_per_iteration * self.refill


class RolloutConfig(EpisodeConfig):
    """One iteration's episodes, and how their tasks are chosen."""

    selection: SelectionConfig = UniformSelection()
    """Which tasks an iteration draws: `uniform`, `by_difficulty` (mostly tasks that are solved sometimes) or
    `easy_to_hard`."""


class EvaluationConfig(Settings):
    """First attempts on held-out tasks, without memory, feedback or reflection in the prompt."""

    every: int = Field(default=1, ge=1)
    """Iterations between evaluations. There is always one before the first and one after the last."""
    tasks: int = Field(default=256, ge=1, le=100_000)
    """Number of held-out tasks."""
    samples_per_task: int = Field(default=0, ge=0, le=64)
    """Sampled attempts at each task besides the greedy one; 0: none."""
    whole_episodes: bool = False
    """After a failed greedy attempt, also go on as the method does in training: once without memory and, if
    the method has a memory, once with it. The success of both is reported."""


_CUTS_SUPPORT = (
    "it gives tokens that the policy could draw a probability of 0, and the ratio of the trained policy to "
    "the one that sampled has no meaning there"
)
_BENDS_DISTRIBUTION = (
    "it makes a token's probability depend on the text around it in a way that the trainer does not compute, "
    "so that the ratio of the trained policy to the one that sampled would compare two different things"
)
_REFUSED_SAMPLING = {
    **dict.fromkeys(
        ("top_p", "top_k", "min_p", "typical_p", "bad_words", "allowed_token_ids"), _CUTS_SUPPORT
    ),
    **dict.fromkeys(
        ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"), _BENDS_DISTRIBUTION
    ),
}
"""Settings that other samplers have, and why training on what they sample would be wrong."""


LEAST_TEMPERATURE = 0.01
"""Between 0 and this nothing is sampled: vLLM takes 0.01 without a word, and logits divided by much less
overflow in 32 bits. Log-probabilities would then be of another temperature than the stored one, or none."""


class SamplingConfig(Settings):
    """How tokens are drawn: from the whole distribution, at a temperature. Settings that cut or distort the
    distribution (`top_p`, `top_k`, penalties, ...) are refused, because the update divides by the probability
    with which a token was drawn."""

    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE, le=2.0)
    """Divides the logits before the softmax; stored log-probabilities include it. At 0 all
    attempts of a group would be alike, and the ratio to such a policy would have no meaning."""
    max_new_tokens: int = Field(default=8, ge=1)
    """The most tokens in one turn of an attempt."""

    @model_validator(mode="before")
    @classmethod
    def _ratio_has_a_meaning(cls, values: Any) -> Any:
        for name in values if isinstance(values, dict) else ():
            if name in _REFUSED_SAMPLING:
                raise ValueError(f"{name} is not offered: {_REFUSED_SAMPLING[name]}; leave it out")
        return values

"""What the pipeline needs of a trainer. Importing it never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.replay import ReplayLoss
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from erl_pipeline.trainers.sequences import TrainingSequence

if TYPE_CHECKING:
    import numpy as np

    from erl_pipeline.policies.checkpoints import StoredPolicy
    from erl_pipeline.policies.pretrained import LoadedPolicy

SettingsT = TypeVar("SettingsT", bound=PluginSettings)

OnStep = Callable[[int, float], None]
"""Called after each optimizer step with its number, from 1, and its loss. An error that it raises ends the
training."""

LoadPolicy = Callable[[], "LoadedPolicy"]


@dataclass(frozen=True)
class Workplace:
    """What a trainer needs that trains in processes of its own.

    They load `stored`, the same policy as `TrainingStart.load` gives. `scratch` is a folder for what is no
    artifact, which may not be there yet; `threads` may compute, over all processes.
    """

    stored: StoredPolicy
    scratch: Path
    threads: int


@dataclass(frozen=True)
class TrainingStart:
    """The checkpoint that a trainer begins with.

    `checkpoint` is the folder of the checkpoint's artifact, where the state of the optimizer is. `load` gives
    its policy in this process, with its adapter where it has one; a trainer calls it at most once. Whoever
    trains gives a `load` whose policy nobody else uses. Stages give a `workplace` too.
    """

    checkpoint: Path
    load: LoadPolicy
    optimizer: OptimizerConfig
    workplace: Workplace | None = None


@dataclass(frozen=True)
class Reinforcement:
    """A reinforcement-learning update.

    `seed` decides how prompts are dealt to minibatches. `reference` is the policy that the KL term refers
    to: where it is stored, or `own_base` for the trained policy without its adapter. `replay` says what
    trajectories of an older policy get as a loss; None where there are none.
    """

    sequences: Sequence[TrainingSequence]
    objective: ObjectiveConfig
    update: UpdateConfig
    seed: int
    reference: StoredPolicy | Literal["own_base"] | None = None
    replay: ReplayLoss | None = None


@dataclass(frozen=True)
class SupervisedTraining:
    """Supervised steps on the trained tokens of `sequences`.

    `seed` decides in which order they are drawn. `rate` gives the learning rate of each step, by its number
    from 1; None: all have that of the settings.
    """

    sequences: Sequence[TrainingSequence]
    settings: FineTuneConfig
    seed: int
    rate: Callable[[int], float] | None = None


class Trainer(Protocol):
    """A policy and its optimizer. Several updates may follow on each other before they are saved."""

    @property
    def determinism(self) -> Literal["bytes", "approximate"]:
        """Whether the same work gives the same bytes on this machine."""
        ...

    def reinforce(self, work: Reinforcement, on_step: OnStep | None = None) -> UpdateMetrics:
        """Change the policy by `epochs * minibatches` optimizer steps.

        Sequences without advantage are left out, unless a KL or entropy term wants them.

        Raises:
            TrainingDiverged: a loss or gradient is not finite; the step was not taken.
            InputError: the model's architecture cannot be trained.
        """
        ...

    def fine_tune_supervised(
        self, work: SupervisedTraining, on_step: OnStep | None = None
    ) -> FineTuneMetrics:
        """Take steps on the cross-entropy of the trained tokens, as many as `FineTuneConfig.optimizer_steps`
        says; raises as `reinforce`."""
        ...

    def logprobs(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        """Log-probabilities (nats, at the sequence's temperature, fp32) of each sequence's trained tokens.

        Sequences without a trained token get an empty array. The policy is not changed.
        """
        ...

    def entropies(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        """Entropies (nats, of the whole vocabulary, at the sequence's temperature, fp32) at the places of
        each sequence's trained tokens; otherwise as `logprobs`."""
        ...

    def save(self, folder: Path) -> None:
        """Write a checkpoint into an artifact's folder: weights or adapter in `model`, and the optimizer.

        Equal states give equal bytes.
        """
        ...

    def trained_policy(self) -> LoadedPolicy | None:
        """The policy as it is now, for whoever samples from it next in this process; None where it is in
        other processes, and must be loaded from what was saved. The trainer may go on later, from the state
        that it saved, when nobody else has changed the policy."""
        ...

    def close(self) -> None:
        """End what the trainer has started, such as other processes. Where its policy is in this process, it
        may go on all the same."""
        ...


def _any_machine(_settings: PluginSettings) -> None:
    """What is asked of the machine where a trainer asks nothing."""


@dataclass(frozen=True)
class TrainerPlugin(Generic[SettingsT]):
    """What an entry point of `erl_pipeline.trainers` names.

    `settings` has a field `type` with the plug-in's name. `open` imports what is heavy, and gives the
    trainer of one checkpoint. `require_here` raises ConfigError where this machine lacks devices that the
    settings ask for; a run that trains here asks before its first stage. `elsewhere` is true where the policy
    is trained in other processes: one that is kept in this process is let go of first. `processes` says over
    how many, each with a device of its own, weights, gradients and the optimizer's state are spread.
    """

    settings: type[SettingsT]
    open: Callable[[SettingsT, TrainingStart], Trainer]
    require_here: Callable[[SettingsT], None] = _any_machine
    elsewhere: bool = False
    processes: Callable[[SettingsT], int] = lambda _settings: 1

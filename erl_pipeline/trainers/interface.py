"""What the pipeline needs of a trainer. Importing it never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.objective import ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.plugins import operational_part, plugins
from erl_pipeline.config.self_distillation import DistillationObjective
from erl_pipeline.network import OtherNodes
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence

if TYPE_CHECKING:
    import numpy as np

    from erl_pipeline.policies.checkpoints import StoredPolicy
    from erl_pipeline.policies.pretrained import LoadedPolicy
    from storage.artifacts.late_files import LateFiles

SettingsT = TypeVar("SettingsT", bound=PluginSettings)

OnStep = Callable[[int, float], None]
"""Called after each optimizer step with its number, from 1, and its loss. An error that it raises ends the
training."""

AttentionSetting = Literal["auto", "flash", "flex", "blocks"]
"""How a trainer computes attention of packed sequences; see `erl_pipeline.trainers.local.attention`."""


GradientSums = Literal["microbatch", "step"]


@dataclass(frozen=True)
class Passes:
    """How forward and backward passes are computed; the fields are those of `PassSettings`, and when several
    processes add up their gradients."""

    attention: AttentionSetting = "auto"
    compile_blocks: bool = False
    gradient_sums: GradientSums = "microbatch"


DEFAULT_PASSES = Passes()


class PassSettings(PluginSettings):
    """How a trainer computes forward and backward passes. Checkpoints depend on it, by rounding."""

    attention: AttentionSetting = "auto"
    """How attention of packed sequences is computed. `flash`: torch's flash attention for sequences of
    different lengths; needs a GPU and weights in bfloat16. `flex`: torch's FlexAttention; needs a GPU.
    `blocks`: batched matrix products, made for CPUs. `auto`: on a GPU the first of these that can be had, on
    a CPU `blocks`. Artifacts name the one that was taken, as `attention` in the manifest's `environment`.
    `flash` and `flex` have not been run on a GPU yet."""
    compile_blocks: bool = False
    """Compile the model's blocks with `torch.compile` (TorchInductor), once for each process that trains. It
    is meant for GPUs, and has not been run on one yet. On a CPU it takes minutes, and a C++ compiler."""

    @property
    def passes(self) -> Passes:
        """These settings alone."""
        return Passes(self.attention, self.compile_blocks)


LoadPolicy = Callable[[], "LoadedPolicy"]

TellWaiting = Callable[[str, float, str], None]
"""Shows what a trainer waits for, for how many seconds it has waited, and the latest news of it."""


@dataclass(frozen=True)
class TrainerContext:
    """What a trainer needs that trains in other processes.

    They load `stored`, the same policy as `TrainingStart.load` gives. `scratch` is a folder for temporary
    files, which may not exist yet; `threads` is the number of computing threads of all processes together.
    `deterministic`: whether GPUs are to give equal bytes (`resources.determinism`).
    `raise_if_stopped` raises where the run was asked to stop; a trainer that waits calls it meanwhile, and
    `tell_waiting`. `other_nodes`: what the runner keeps for it; None where it keeps none. `keep`: that of the
    worker's `Resources`, with which processes can serve several trainings; None: they end with the trainer.
    """

    stored: StoredPolicy
    scratch: Path
    threads: int
    deterministic: bool = False
    raise_if_stopped: Callable[[], None] = lambda: None
    tell_waiting: TellWaiting = lambda _what, _seconds, _detail: None
    other_nodes: OtherNodes | None = None
    keep: Callable[[str, Callable[[], Any]], Any] | None = None


KEPT_PROCESSES = "processes of trainers"
"""The name under which a worker keeps them."""


class KeptProcesses(Protocol):
    """What a worker keeps of a trainer that trains in other processes."""

    def make_room(self) -> None:
        """Release the memory of their GPUs, on which a policy is loaded next. Host memory may be kept."""


def make_room(kept: Callable[[str], Any | None]) -> None:
    """Have what a worker keeps of trainers release GPUs, before a policy is loaded there in another way.
    `kept`: that of the worker's `Resources`."""
    processes: KeptProcesses | None = kept(KEPT_PROCESSES)
    if processes is not None:
        processes.make_room()


@dataclass(frozen=True)
class TrainingStart:
    """The checkpoint that a trainer begins with.

    `checkpoint` is the folder of the checkpoint's artifact, where the state of the optimizer is. `load` gives
    its policy in this process, with its adapter where it has one; a trainer calls it at most once. Nothing
    else may use the policy that `load` gives. Stages give a `context` too.
    """

    checkpoint: Path
    load: LoadPolicy
    optimizer: OptimizerConfig
    context: TrainerContext | None = None


@dataclass(frozen=True)
class Reinforcement:
    """A reinforcement-learning update.

    `seed` decides how prompts are dealt to minibatches. `reference` is the reference policy of the KL term:
    where it is stored, or `own_base` for the trained policy without its adapter. `replay` is the loss of
    trajectories of an older policy; None where there are none. `distillation`: the loss of sequences with a
    `teacher`; None where it has none.
    """

    sequences: Sequence[TrainingSequence]
    objective: ObjectiveConfig
    update: UpdateConfig
    seed: int
    reference: StoredPolicy | Literal["own_base"] | None = None
    replay: ReplayLoss | None = None
    distillation: DistillationObjective | None = None


@dataclass(frozen=True)
class SupervisedTraining:
    """Supervised steps on the trained tokens of `sequences`.

    `seed` decides in which order they are drawn. `rate` gives the learning rate of each step, by its number
    from 1; None: that of the settings for all steps.
    """

    sequences: Sequence[TrainingSequence]
    settings: FineTuneConfig
    seed: int
    rate: Callable[[int], float] | None = None


class Trainer(Protocol):
    """A policy and its optimizer. Several updates may be made before they are saved."""

    @property
    def determinism(self) -> Literal["bytes", "approximate"]:
        """Whether the same work gives the same bytes on this machine."""

    def reinforce(self, work: Reinforcement, on_step: OnStep | None = None) -> UpdateMetrics:
        """Change the policy by `epochs * minibatches` optimizer steps.

        Sequences without advantage are left out, unless a KL or entropy term uses them.

        Raises:
            TrainingDiverged: a loss or gradient is not finite; the step was not taken.
            InputError: the model's architecture cannot be trained.
        """

    def fine_tune_supervised(
        self, work: SupervisedTraining, on_step: OnStep | None = None
    ) -> FineTuneMetrics:
        """Take steps on the cross-entropy of the trained tokens, as many as `FineTuneConfig.optimizer_steps`
        says; raises the errors of `reinforce`."""

    def logprobs(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        """Log-probabilities (nats, at the sequence's temperature, fp32) of each sequence's trained tokens.

        Sequences without a trained token get an empty array. The policy is not changed.
        """

    def entropies(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        """Entropies (nats, of the whole vocabulary, at the sequence's temperature, fp32) at the positions of
        each sequence's trained tokens; otherwise as `logprobs`."""

    def token_scores(
        self,
        sequences: Sequence[TrainingSequence],
        microbatch_tokens: int,
        top_k: int = 0,
        policy: StoredPolicy | Literal["own_base"] | None = None,
    ) -> list[TokenScores]:
        """What a policy says at each sequence's trained tokens: this one, another one, or its base without
        the adapter. The tokens that are compared are those of the sequence's `teacher`, where it has one, and
        else the `top_k` most probable ones. The policy is not changed."""

    def save(self, folder: Path, *, state: bool = True) -> None:
        """Write a checkpoint into an artifact's folder: weights or adapter in `model`, what a sampler
        needs in `probe.safetensors` (`erl_pipeline.engines.probe.save_probe`), the number of steps in
        `optimizer.json`, and with `state` the optimizer's tensors in `optimizer.safetensors`. Large weights
        and states are several files (`erl_pipeline.policies.checkpoint_files.deal_to_files`).

        Equal states give equal bytes.
        """

    def begin_state(self, folder: Path, late_files: LateFiles) -> Mapping[str, int]:
        """Begin to write the files that `save` would write with the optimizer's tensors, and give their sizes
        in bytes, by their names. They are written while the policy is sampled from
        (`storage.artifacts.late_files`): by `late_files`, or in the trainer's other processes.

        The trainer must take no step before `late_files` has written.
        """

    def trained_policy(self) -> LoadedPolicy | None:
        """The current policy, for sampling in this process; None where it is in other processes, and must be
        loaded from what was saved. The trainer may later continue from the state that it saved, if nothing
        else has changed the policy."""

    def lasts(self) -> bool:
        """Whether a later stage can continue with it; false where processes of it have ended, or end with
        this stage."""

    def close(self) -> None:
        """End what the trainer has started, such as other processes, unless the worker keeps them for
        another trainer. A trainer whose policy is in this process may still be used afterwards."""


@dataclass(frozen=True)
class TrainerPlugin(Generic[SettingsT]):
    """What an entry point of `erl_pipeline.trainers` names.

    `settings` has a field `type` with the plug-in's name. `open` imports heavy packages, and gives the
    trainer of one checkpoint. `require_here` raises ConfigError where this machine lacks devices that the
    settings ask for; a run that trains here asks before its first stage. `elsewhere` is true where the policy
    is trained in other processes: a policy that is kept in this process is released first. `processes` is the
    number of processes, each with its own device, over which weights, gradients and the optimizer's state are
    spread; None where the trainer keeps them whole. `in_recipes` is the part of `settings` that checkpoints
    depend on, a model that `settings` extends; None: they depend on all. The others may change during a run.
    `processes_here` is the number of them on one machine.
    `sleeps`: whether these keep policy and state in host memory while others use their devices.
    `nodes_to_find`: how many other machines a runner has to find for each training; 0 where it needs none, or
    its settings say where they meet.
    """

    settings: type[SettingsT]
    open: Callable[[SettingsT, TrainingStart], Trainer]
    require_here: Callable[[SettingsT], None] = lambda _settings: None
    elsewhere: bool = False
    processes: Callable[[SettingsT], int | None] = lambda _settings: None
    processes_here: Callable[[SettingsT], int] = lambda _settings: 1
    sleeps: Callable[[SettingsT], bool] = lambda _settings: False
    in_recipes: type[PluginSettings] | None = None
    nodes_to_find: Callable[[SettingsT], int] = lambda _settings: 0


def operational_part_here(trainer: PluginSettings) -> dict[str, Any]:
    """As `operational_part`, for a trainer whose stages are all computed on this machine: nodes that a runner
    would have to find are left out, so all of the trainer's processes are here."""
    if plugins("trainers")[trainer.type].value.nodes_to_find(trainer):
        return {}
    return operational_part("trainers", trainer)

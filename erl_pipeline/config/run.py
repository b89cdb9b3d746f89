"""The whole configuration of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from erl_pipeline.config.base import NotInstalledSettings, PluginSettings, Settings, switch
from erl_pipeline.config.distillation import DISTILLED, DistillationConfig, Form, require_distillable
from erl_pipeline.config.experience import ExtractedConfig, Lessons, require_extractable
from erl_pipeline.config.memory import RetrievalSettings, require_subgroups
from erl_pipeline.config.objective import (
    OBSERVED,
    DecoupledCorrection,
    ObjectiveConfig,
    require_known_roles,
)
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.pipeline import (
    NodesToFind,
    PipelineConfig,
    ResourcesConfig,
    RetentionConfig,
    StoreConfig,
    WarningsConfig,
)
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.replay import REPLAYED, ReplayConfig, require_replayable
from erl_pipeline.config.rollouts import EasyToHardSelection, EvaluationConfig, RolloutConfig, SamplingConfig
from erl_pipeline.config.self_distillation import SelfDistillationConfig
from erl_pipeline.config.served_feedback import ServedFeedbackConfig

if TYPE_CHECKING:
    from typing import TypeAlias

    MethodSettings: TypeAlias = PluginSettings
    EnvironmentSettings: TypeAlias = PluginSettings
    PolicySettings: TypeAlias = PluginSettings
    EngineSettings: TypeAlias = PluginSettings
    TrainerSettings: TypeAlias = PluginSettings
    RunnerSettings: TypeAlias = PluginSettings
else:
    from erl_pipeline.config.plugins import settings_of

    MethodSettings = settings_of("methods")
    EnvironmentSettings = settings_of("environments")
    PolicySettings = settings_of("policies")
    EngineSettings = settings_of("engines")
    TrainerSettings = settings_of("trainers")
    RunnerSettings = settings_of("runners")


class RunConfig(Settings):
    """One training run. `erl-pipeline config show` prints all its settings with their values."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Name of the run in its store: letters, digits, `.`, `_` and `-`."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """All random numbers of the run are derived from it."""
    iterations: int = Field(ge=1)
    """Number of iterations; `train --iterations N` continues a finished run to N."""
    method: MethodSettings = Field(
        default="erl",
        validate_default=True,
    )
    """How the policy learns, such as `erl` (arXiv 2602.13949) or `rlvr`; a bare name means its defaults."""
    environment: EnvironmentSettings
    """The environment, which gives the tasks."""
    policy: PolicySettings
    """The policy that is trained."""
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineSettings = Field(
        default="transformers",
        validate_default=True,
    )
    """The engine, which samples text from the policy."""
    rollouts: RolloutConfig = RolloutConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    self_distillation: Annotated[SelfDistillationConfig | None, BeforeValidator(switch)] = None
    """`on`, or its settings: the policy also learns, token by token, from a teacher with hindsight."""
    experience: Annotated[ExtractedConfig | None, BeforeValidator(switch)] = None
    """`on`, or its settings: a second model, the extractor, writes lessons, which take the place of what the
    method itself remembers."""
    replay: Annotated[ReplayConfig | None, BeforeValidator(switch)] = None
    """`on`, or its settings: first attempts are trained together with stored successes of earlier iterations
    (ExGRPO, arXiv 2510.02245)."""
    distillation: DistillationConfig = DistillationConfig()
    update: UpdateConfig = UpdateConfig()
    fine_tune: FineTuneConfig = FineTuneConfig()
    served_feedback: ServedFeedbackConfig = ServedFeedbackConfig()
    trainer: TrainerSettings = Field(
        default="local",
        validate_default=True,
    )
    """The trainer, which updates the weights."""
    evaluation: EvaluationConfig = EvaluationConfig()
    pipeline: PipelineConfig = PipelineConfig()
    runner: RunnerSettings = Field(
        default="prefect",
        validate_default=True,
    )
    """The runner, which computes the stages. No artifact depends on it."""
    resources: ResourcesConfig = ResourcesConfig()
    store: StoreConfig = StoreConfig()
    retention: RetentionConfig = RetentionConfig()
    warnings: WarningsConfig = WarningsConfig()
    metrics: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """The trackers that get the numbers of each stage besides the store; `[]`: none. `tensorboard`: event
    files in `runs/NAME/tensorboard`. `wandb`: an offline run in `runs/NAME/wandb`, for `wandb sync`; it needs
    the package wandb. `mlflow`: a run on the tracking server that `MLFLOW_TRACKING_URI` names, or without it
    in `runs/NAME/mlflow.db`; it needs the package mlflow-skinny. A run can be continued with another choice,
    and no artifact depends on it."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the trajectories that the policy is trained on by reinforcement."""
        own: tuple[str, ...] = plugins("methods")[self.method.type].value.roles(self.method)
        replayed = () if self.replay is None else (REPLAYED,)
        distilled = (DISTILLED,) if self.distillation_form == "joint" else ()
        return (*own, *replayed, *distilled, *((OBSERVED,) if self.objective.observation_coefficient else ()))

    @property
    def lessons(self) -> Lessons | None:
        """The extractor of the run: that beside the method, or the method's own."""
        if self.experience is not None:
            return Lessons(self.experience, self.experience.prompts, "experience")
        own: Lessons | None = plugins("methods")[self.method.type].value.own_experience(self.method)
        return own

    @property
    def retrieval(self) -> RetrievalSettings | None:
        """How the memory of the run is searched; None where it has none."""
        if self.experience is not None:
            return self.experience.retrieval()
        own: RetrievalSettings | None = plugins("methods")[self.method.type].value.retrieval(self.method)
        return own

    @property
    def distillation_form(self) -> Form:
        """`distillation.form`, or where it is null the form that the method has by itself."""
        by_itself: Form = plugins("methods")[self.method.type].value.distils_by_itself
        return self.distillation.form or by_itself

    @property
    def nodes_to_find(self) -> NodesToFind:
        """The machines that the runner has to find for each training."""
        trainer = plugins("trainers")[self.trainer.type].value
        return NodesToFind(trainer.nodes_to_find(self.trainer), trainer.processes_here(self.trainer))

    @model_validator(mode="after")
    def _possible_together(self) -> RunConfig:
        method = plugins("methods")[self.method.type].value
        plugins("policies")[self.policy.type].value.require_possible(self)
        require_difficulty(self)
        require_whole_attempts(self)
        require_somebody_finds_nodes(self)
        require_groups_fit(self)
        require_equal_bytes(self)
        require_state_in_memory(self)
        require_hindsight(self)
        require_reflections(self)
        require_one_head(self)
        if self.replay is not None:
            require_replayable(self.replay, self.rollouts, self.pipeline, self.method)
        require_distillable(self.distillation, self.distillation_form, self.method)
        require_known_roles(self.objective, self.roles)
        lessons, retrieval = self.lessons, self.retrieval
        if lessons is not None:
            require_extractable(lessons, self.method, self.environment, self.policy, self.engine)
        if retrieval is not None and self.objective.advantages_per == "subgroup":
            require_subgroups(retrieval, self.rollouts.group_size, replays=self.replay is not None)
        if self.pipeline.lag and not isinstance(self.objective.correction, DecoupledCorrection):
            raise ValueError(
                f"pipeline.lag: {self.pipeline.lag}; allowed with objective.correction.type: bypass is 0, "
                "since rollouts of an older policy need importance weights; set it to decoupled"
            )
        method.require_possible(self)
        return self


class ReadOnlyConfig(RunConfig):
    """The configuration of a run whose environment is not installed: enough to read what the run has made,
    and not enough to plan or to go on."""

    environment: NotInstalledSettings

    @model_validator(mode="after")
    def _possible_together(self) -> ReadOnlyConfig:
        return self  # What was possible together was checked when the run began.


def require_difficulty(config: RunConfig) -> None:
    """Raise ValueError if tasks are to be ordered by an environment that cannot say how hard they are."""
    selection = config.rollouts.selection
    if not isinstance(selection, EasyToHardSelection) or selection.by != "environment":
        return
    environment = plugins("environments")[config.environment.type].value
    parts = {part.settings.type: part.plugin for part in environment.parts(config.environment).values()}
    for type_, plugin in (parts or {config.environment.type: environment}).items():
        if plugin.splits.difficulty is None:
            raise ValueError(
                f"rollouts.selection.by: environment; environment {type_} cannot say how hard a task is; "
                "allowed is by: results"
            )


def require_whole_attempts(config: RunConfig) -> None:
    """Raise ValueError if the loss would count the token sequences of an agent's attempt one by one."""
    environment = plugins("environments")[config.environment.type].value
    how = config.objective.loss_normalization
    if how != "token_mean" and environment.has_agents(config.environment):
        raise ValueError(
            f"objective.loss_normalization: {how}; allowed with an agent as environment is token_mean: an "
            "attempt may have several token sequences, and the other values would count each as an attempt"
        )
    if config.objective.subgroup_losses == "averaged" and environment.has_agents(config.environment):
        raise ValueError(
            "objective.subgroup_losses: averaged; allowed with an agent as environment is pooled, since the "
            "token sequences of its attempts are weighed one by one"
        )


def require_hindsight(config: RunConfig) -> None:
    """Raise ValueError if the method, or a tiny policy's words, cannot give the hindsight that
    `self_distillation` asks for."""
    if config.self_distillation is None:
        return
    roles = plugins("methods")[config.method.type].value.self_distilled
    if roles is None:
        raise ValueError(
            f"self_distillation: method {config.method.type} cannot be combined with it; "
            "allowed are erl and rlvr"
        )
    if config.objective.credit == "turn":
        raise ValueError(
            "objective.credit: turn; allowed with self_distillation is episode, since both give tokens their "
            "own advantages"
        )
    config.self_distillation.require_within_budget(config.rollouts.drawn_tasks * config.rollouts.group_size)
    hindsight = config.self_distillation.hindsight
    if hindsight == "reflection" and roles.retry is None:
        raise ValueError(
            f"self_distillation.hindsight: reflection; method {config.method.type} writes none; allowed are "
            "sibling, feedback and demonstration"
        )
    traits = plugins("policies")[config.policy.type].value.traits(config.policy)
    if hindsight != "reflection" and traits.own_words:
        raise ValueError(
            f"self_distillation.hindsight: {hindsight} puts sentences into the prompt, and policy.type: "
            f"{config.policy.type} reads only the words of its environment; allowed is reflection"
        )


def require_reflections(config: RunConfig) -> None:
    """Raise ValueError if reflections on served traffic are asked for, and the method writes none, keeps no
    memory, or its policy reads no sentences."""
    reflect = config.served_feedback.reflect
    if reflect is None:
        return
    method = plugins("methods")[config.method.type].value
    reflects = method.reflecting(method.episode_settings(config.method)) is not None
    if not reflects or method.retrieval(config.method) is None:
        raise ValueError(
            f"served_feedback.reflect: {reflect}; method {config.method.type} has no memory of "
            "reflections, as erl has unless method.memory is off; allowed is off"
        )
    if plugins("policies")[config.policy.type].value.traits(config.policy).own_words:
        raise ValueError(
            f"served_feedback.reflect: {reflect} shows conversations to the policy, and "
            f"policy.type: {config.policy.type} reads only the words of its environment; allowed is off"
        )


def require_one_head(config: RunConfig) -> None:
    """Raise ValueError if trainer and engine would compute the output head in different number types."""
    policy = plugins("policies")[config.policy.type].value.traits(config.policy).head_dtype
    engine = plugins("engines")[config.engine.type].value.head_dtype(config.engine, policy)
    if engine != policy:
        raise ValueError(
            f"policy.head_dtype: {policy or 'null'} and engine.head_dtype: {engine or 'null'} with engine "
            f"{config.engine.type}; allowed are equal ones, since sampler and trainer would differ more "
            "otherwise"
        )


def require_state_in_memory(config: RunConfig) -> None:
    """Raise ValueError if the state of the optimizer is not always committed, and no single process of this
    machine keeps it meanwhile."""
    every = config.retention.optimizer_every
    if every == 1:
        return
    said = f"retention.optimizer_every: {every}; allowed with"
    if _on_several_machines(config):
        raise ValueError(f"{said} a trainer on several machines is 1, since they hold the state of one model")
    if config.resources.devices > 1:
        raise ValueError(
            f"{said} resources.devices: {config.resources.devices} is 1, since each device has a process of "
            "its own, and only one would have the state"
        )
    if plugins("runners")[config.runner.type].value.elsewhere:
        raise ValueError(
            f"{said} runner.type: {config.runner.type} is 1, since its workers are on other machines"
        )


def _on_several_machines(config: RunConfig) -> bool:
    trainer = plugins("trainers")[config.trainer.type].value
    return trainer.processes(config.trainer) not in (None, trainer.processes_here(config.trainer))


def require_somebody_finds_nodes(config: RunConfig) -> None:
    """Raise ValueError if a training needs other machines, and neither its settings nor the runner say which
    they are."""
    count = config.nodes_to_find.count
    if count and not plugins("runners")[config.runner.type].value.finds_nodes:
        raise ValueError(
            f"trainer.nodes: {count + 1} needs trainer.address with runner.type: {config.runner.type}. "
            "Set it to HOST:PORT of the machine that computes the stage, at which the other nodes reach it, "
            f"and start `erl-pipeline trainer-node` on {count} more; or use runner.type: ray, which "
            "finds the nodes itself"
        )
    if config.resources.devices > 1 and not count and _on_several_machines(config):
        raise ValueError(
            f"resources.devices: {config.resources.devices}; allowed with trainer.address is 1, since each "
            "device has a process of its own, and only one of them can have the other nodes. Leave "
            "trainer.address out with runner.type: ray, which lends them to one after the other"
        )


def require_groups_fit(config: RunConfig) -> None:
    """Raise ValueError if the runner cannot give sampling and training GPUs of their own, if there are fewer
    for training than processes, or if the engine would take others than its group."""
    groups = config.resources.groups
    if groups is None:
        return
    if lacks := plugins("runners")[config.runner.type].value.lacks_for_groups(config.runner):
        raise ValueError(f"resources.groups: runner.type: {config.runner.type} cannot be used: {lacks}")
    processes = plugins("trainers")[config.trainer.type].value.processes_here(config.trainer)
    if len(groups.train) < processes:
        raise ValueError(
            f"resources.groups.train: {list(groups.train)}; the trainer has {processes} processes on a "
            f"machine, and each needs a GPU of its own: name {processes}, or lower trainer.processes"
        )
    devices = plugins("engines")[config.engine.type].value.devices(config.engine)
    if len(groups.sample) < devices:
        raise ValueError(
            f"resources.groups.sample: {list(groups.sample)}; the engine's servers need {devices} GPUs: name "
            f"{devices}, or lower engine.replicas or the sizes in engine.arguments"
        )
    if "CUDA_VISIBLE_DEVICES" in getattr(config.engine, "environment", {}):
        raise ValueError(
            "engine.environment.CUDA_VISIBLE_DEVICES cannot be combined with resources.groups, whose "
            "`sample` says which GPUs the servers have; leave it out"
        )


def require_equal_bytes(config: RunConfig) -> None:
    """Raise ValueError if equal bytes are asked for, and the engine could not give them even on a GPU with
    batch invariance."""
    if config.resources.determinism == "approximate":
        return
    if reason := plugins("engines")[config.engine.type].value.bytes_vary_because(config.engine, True):
        raise ValueError(f"resources.determinism: bytes cannot be kept: {reason}")

"""The whole configuration of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from erl_pipeline.config.base import Settings
from erl_pipeline.config.distillation import DistillationConfig
from erl_pipeline.config.evaluation import EvaluationConfig
from erl_pipeline.config.generation import EngineConfig, SamplingConfig, TransformersEngineConfig
from erl_pipeline.config.memory import MemoryConfig
from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.policy import PolicyConfig, TinyPolicyConfig
from erl_pipeline.config.rollouts import RolloutConfig
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig


def _switch(value: Any) -> Any:
    """`off` (YAML's false) and `on` (true, the defaults) stand for a whole group of settings."""
    if value is False:
        return None
    return {} if value is True else value


class RunConfig(Settings):
    """One training run. `erl-pipeline config show` prints it resolved."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Name of the run in its store: letters, digits, `.`, `_` and `-`."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Every random number of the run derives from it."""
    iterations: int = Field(ge=1)
    """Passes through the stages; `train --iterations N` continues a finished run to N."""
    method: Literal["erl", "rlvr"] = "erl"
    """`erl`: attempt, feedback, reflection, second attempt (arXiv 2602.13949). `rlvr`: first attempts."""
    threads: int = Field(default=2, ge=1, le=256)
    """CPU threads of torch. Bytes are reproducible for a fixed number of threads."""
    environment: FrozenLakeConfig
    policy: PolicyConfig
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = TransformersEngineConfig()
    rollouts: RolloutConfig = RolloutConfig()
    reflection: bool = True
    """`off`: second attempts follow the feedback alone, without a reflection (an ablation of ERL)."""
    memory: Annotated[MemoryConfig | None, BeforeValidator(_switch)] = MemoryConfig()
    """`off`: reflections are neither stored nor retrieved."""
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    update: UpdateConfig = UpdateConfig()
    distillation: Annotated[DistillationConfig | None, BeforeValidator(_switch)] = DistillationConfig()
    """`off`: no distillation dataset and no supervised stage."""
    fine_tune: FineTuneConfig = FineTuneConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    metrics: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """Where the numbers of each stage go beside the store; `[]` for nowhere. `tensorboard`: event files in
    `runs/NAME/tensorboard`. `wandb`: an offline run in `runs/NAME/wandb`, for `wandb sync`; it needs the
    package wandb. `mlflow`: a run on the tracking server that `MLFLOW_TRACKING_URI` names, without it in
    `runs/NAME/mlflow.db`; it needs the package mlflow-skinny. A run can be continued with another choice,
    and no artifact depends on it."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_method(cls, values: Any) -> Any:
        """RLVR neither reflects nor distils unless asked to; without reflections there is no memory."""
        if not isinstance(values, dict):
            return values
        if values.get("method") == "rlvr":
            return {"reflection": False, "memory": False, "distillation": False, **values}
        if values.get("reflection") is False:
            return {"memory": False, **values}
        return values

    @model_validator(mode="after")
    def _possible_together(self) -> RunConfig:
        if isinstance(self.policy, TinyPolicyConfig) and self.environment.format != "compact":
            raise ValueError(
                f"environment.format: {self.environment.format}; allowed with policy.type: tiny is compact"
            )
        if self.method == "rlvr" and self.reflection:
            raise ValueError(
                "reflection: on has no meaning with method: rlvr, which makes first attempts only; set it off"
            )
        if self.method == "rlvr" and self.memory is not None:
            raise ValueError("memory has no meaning with method: rlvr, which never reflects; set memory: off")
        if self.memory is not None and not self.reflection:
            raise ValueError("memory holds reflections: with reflection: off set memory: off too")
        if self.method == "rlvr" and self.distilled_role == "second_attempt":
            raise ValueError(
                "distillation.source: second_attempt is impossible with method: rlvr; allowed: first_attempt"
            )
        return self

    @property
    def distilled_role(self) -> Literal["second_attempt", "first_attempt"] | None:
        """Role of the attempts that are distilled; None when distillation is off."""
        if self.distillation is None:
            return None
        return self.distillation.source or ("second_attempt" if self.method == "erl" else "first_attempt")

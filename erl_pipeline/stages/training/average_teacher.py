"""The teacher of self-distillation, where it is not the policy itself: frozen, or an average of policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.config.self_distillation import AveragedTeacher, LiveTeacher
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import (
    BASE,
    CHECKPOINT,
    MODEL,
    WeightsSettings,
    checkpoint_parts,
    load_checkpoint,
    weights_settings,
)

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.policies.pretrained import LoadedPolicy
    from storage.artifacts.artifact import Artifact

TEACHER = "teacher"
"""Name of the input through which a stage gets the weights of a teacher."""


class AverageSettings(Settings):
    """What an average depends on, besides the two that it is of."""

    rate: float
    weights: WeightsSettings


def _slice(config: RunConfig, _sources: Sources) -> AverageSettings:
    assert config.self_distillation is not None
    teacher = config.self_distillation.teacher
    assert isinstance(teacher, AveragedTeacher)
    weights = weights_settings(config)
    # Averages are kept in fp32: in bf16 a step of a hundredth would be lost.
    return AverageSettings(rate=teacher.rate, weights=weights.model_copy(update={"dtype": "float32"}))


def plan_teacher(planner: Planner, state: RunState, iteration: int, model: str) -> dict[str, str]:
    """Plan what makes the teacher of an iteration; returns the input that a stage gets it by, none where the
    teacher is the policy itself."""
    assert planner.config.self_distillation is not None
    how = planner.config.self_distillation.teacher
    if isinstance(how, LiveTeacher):
        return {}
    teacher = state.initial[model]
    if isinstance(how, AveragedTeacher):
        made = (planner.planned(AVERAGE_TEACHER, earlier) for earlier in range(iteration - 1, 0, -1))
        teacher = next(filter(None, made), teacher)
        if iteration > 1 and (iteration - 1) % how.interval == 0:
            inputs = {**state.model_inputs(model), TEACHER: teacher}
            teacher = planner.add(AVERAGE_TEACHER, inputs, iteration=iteration)
    # At first they are one: the policy is in memory already.
    return {} if teacher == state.models[model] else {TEACHER: teacher}


def _compute(call: StageCall[AverageSettings]) -> StageResult:
    """Write the average of a teacher and the policy: a checkpoint without the state of an optimizer."""
    import torch

    from erl_pipeline.engines.probe import save_probe
    from erl_pipeline.policies.pretrained import save_policy

    teacher = _load(call, call.inputs[TEACHER])
    policy = _load(call, call.inputs[CHECKPOINT])
    squares = 0.0
    with torch.no_grad():
        for mine, new in zip(teacher.model.parameters(), policy.model.parameters(), strict=True):
            squares += float((new - mine).double().square().sum())
            mine.lerp_(new, call.settings.rate)
    save_policy(teacher, call.folder / MODEL)
    save_probe(teacher, call.folder)
    return StageResult(metrics={"teacher_distance": squares**0.5})


def _load(call: StageCall[AverageSettings], checkpoint: Artifact) -> LoadedPolicy:
    import torch

    base = {BASE: call.inputs[BASE]} if BASE in call.inputs else {}
    parts = checkpoint_parts({CHECKPOINT: checkpoint, **base})
    return load_checkpoint(parts, call.settings.weights, torch.device("cpu"))


AVERAGE_TEACHER = Stage(
    name="average_teacher",
    version=1,
    output="checkpoint",
    settings=AverageSettings,
    compute=_compute,
    slice=_slice,
)

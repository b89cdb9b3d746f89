"""The stage that examines an environment; its artifact stands alone, and no run depends on it."""

from __future__ import annotations

from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.planner import Planner
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.qualification.examination import examine
from erl_pipeline.qualification.served_environment import EnvironmentSpec
from erl_pipeline.stages.tasks.build_environment_files import built_folder, built_inputs
from erl_pipeline.stages.tasks.prepare_tasks import PREPARE_TASKS, TaskSettings, located
from storage.artifacts.recipe import derive_seed

QUALIFICATION = "qualification.json"


class QualificationSettings(TaskSettings):
    """What an examination depends on; `held_out` is the number of held-out tasks in evaluations."""

    tasks: int
    """Tasks that are attempted."""
    answers: int
    """Hostile answers, over all tasks together."""
    step_seconds: float
    """Deadline of each call of the environment, in seconds."""


def plan_qualification(planner: Planner, tasks: int, answers: int) -> str:
    """Plan the examination of a configuration's environment, with the configuration's seed."""
    base = planner.settings(PREPARE_TASKS)
    settings = QualificationSettings(
        environment=base.environment,
        files=base.files,
        held_out=base.held_out,
        seed=base.seed,
        tasks=tasks,
        answers=answers,
        step_seconds=planner.config.rollouts.step_seconds,
    )
    seed = derive_seed(base.seed, QUALIFY_ENVIRONMENT.name)
    inputs = built_inputs(planner)
    return planner.add(QUALIFY_ENVIRONMENT, inputs, iteration=None, settings=settings, seed=seed)


def _compute(call: StageCall[QualificationSettings]) -> StageResult:
    settings = call.settings
    environment = located(settings.environment, settings.files, call.locations)
    call.progress.begin(settings.tasks + settings.answers, "tasks and answers")
    found = examine(
        EnvironmentSpec(
            type=environment.type,
            settings=environment.model_dump(mode="json"),
            seed=settings.seed,
            held_out=settings.held_out,
            step_seconds=settings.step_seconds,
            built=str(built_folder(call.inputs) or ""),
        ),
        settings.tasks,
        settings.answers,
        advance=call.progress.advance,
        stopped=call.progress.raise_if_stopped,
    )
    (call.folder / QUALIFICATION).write_text(found.qualification.document(), encoding="utf-8")
    checks = found.qualification.checks
    return StageResult(
        counters={
            "tasks": found.tasks,
            "hostile_answers": found.answers,
            "checks_passed": sum(check.verdict == "passed" for check in checks),
            "checks_failed": sum(check.verdict == "failed" for check in checks),
        },
        metrics={"mean_call_seconds": found.mean_seconds, "slowest_call_seconds": found.slowest_seconds},
        determinism="bytes"
        if plugins("environments")[environment.type].value.timing_of(environment) == "instant"
        else "approximate",
    )


QUALIFY_ENVIRONMENT = Stage(
    name="qualify_environment",
    version=2,
    output="qualification",
    settings=QualificationSettings,
    compute=_compute,
    code=("environment", "examination"),
)

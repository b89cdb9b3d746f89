"""Evaluating a checkpoint of a run in the foreground."""

from collections.abc import Callable
from pathlib import Path

from command_line.foreground import work_on_run
from command_line.output import counted, print_json, print_line
from command_line.selectors import find_checkpoint
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.runner import InProcessConfig
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.plan.stage import StageOutcome
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.on_request import evaluate_on_request
from erl_pipeline.runs.planning import plan_as_made
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore


def evaluate_checkpoint(
    run: str, checkpoint: str, file: Path | None, count: int | None, samples: int, store: str, json: bool
) -> None:
    """Evaluate a checkpoint on the tasks of a file, or on `count` generated ones, and print the rates."""
    opened_run = RunStore(store).open(run)
    config = run_config(opened_run)
    found = find_checkpoint(ArtifactStore(store), opened_run, checkpoint)
    iteration, checkpoint_id = found.iteration or 0, found.artifact_id
    beginning = plan_as_made(store, opened_run, 0, sources=unread_sources(config)).states[0]

    def work(opened: OpenRun, _note: Callable[[str], None]) -> StageOutcome:
        opened.config = config.model_copy(update={"runner": InProcessConfig()})
        base = beginning.bases.get(POLICY)
        return evaluate_on_request(opened, iteration, checkpoint_id, base, samples, count=count, file=file)

    kept = "Stopped; nothing is kept of this evaluation."
    outcome = work_on_run(config, store, config.iterations, work, lambda: kept)
    evaluated = int(outcome.counters["episodes"]) // (1 + samples)
    if json:
        print_json(
            {
                "run": run,
                "checkpoint": checkpoint_id,
                "iteration": iteration,
                "tasks": evaluated,
                "samples_per_task": samples,
                "artifact_id": outcome.artifact_id,
                "metrics": dict(outcome.metrics),
            }
        )
        return
    print_line(f"Checkpoint {checkpoint_id[:12]} (iteration {iteration}) on {counted(evaluated, 'task')}:")
    for name, words in (("greedy_success", "greedy"), ("sampled_success", f"sampled, {samples} a task")):
        if name in outcome.metrics:
            value, low, high = (outcome.metrics[f"{name}{end}"] for end in ("", "_low", "_high"))
            print_line(f"  {words + ':':<20}{value:.3f}  (95 % interval {low:.3f} to {high:.3f})")
        if left_out := outcome.metrics.get(f"{name}_left_out"):
            print_line(f"  {'':<20}without {counted(int(left_out), 'attempt')} that were not scored")

"""What was not scored changes nothing that follows: every stage and view that reads trajectories gives the
same with such rows as without them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from command_line.episodes.rows import EpisodeFilter, list_episodes
from erl_pipeline.comparison.runs import training_figures
from erl_pipeline.config.pipeline import WarningsConfig
from erl_pipeline.evaluation.history import learning_curve, read_history
from erl_pipeline.evaluation.memory_effect import memory_effect
from erl_pipeline.plan.plan import Plan
from erl_pipeline.plan.stage import Stage
from erl_pipeline.runs.config import run_columns
from erl_pipeline.runs.run_plans import plan_offline, plan_run
from erl_pipeline.runs.state import summarize_run
from erl_pipeline.runs.warnings import ROWS, rollout_warnings
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.counts import graded_rewards, reason_counter
from erl_pipeline.views.report.curves import role_rewards
from erl_pipeline.views.report.page import example_episodes
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.lineage.reach import explain
from storage.memory.credit import memory_searches, rollout_files
from storage.runs.run import RunStore
from storage.tables.scored import NOT_SCORED, was_scored
from storage.tables.training import TRAINING_RECORD_FILE
from storage.tables.trajectories import read_trajectories, scan_trajectories
from tests.command_line.ui.clients import client, main_text
from tests.erl_pipeline.runs.planned_runs import SOURCES
from tests.erl_pipeline.runs.small_runs import ids
from tests.erl_pipeline.runs.unscored_runs import CONFIGS, OFFLINE, configured, trained
from tests.stage_versions import find_stages

COUNTS_OF_ROWS = {
    "generate_rollouts": None,  # it counts what was played
    "extract_experience": {"episodes_left_out"},
}
"""Counters that say how much was left out, or how much there is; None: all of them."""

TIMES = ("seconds", "per_second")

READ_NO_TRAJECTORIES = {
    "adopt_instruction": "reads the table of try_notes, which the runs here have",
    "average_teacher": "reads checkpoints",
    "bootstrap": "is before all rollouts",
    "bootstrap_extractor": "is before all rollouts",
    "build_environment_files": "is before all rollouts",
    "build_corrections": "reads what people wrote, also where nobody rated: see tests of it",
    "evaluate": "reads only what it has played itself: see tests of its scores",
    "evaluate_on_request": "as evaluate",
    "evaluate_on_test": "as evaluate",
    "evaluate_with_experience": "as evaluate",
    "fine_tune": "reads a dataset, whose stage reads trajectories",
    "fine_tune_corrections": "reads a dataset",
    "forget_memory": "reads a memory version",
    "merge_experience": "reads a memory version",
    "prepare_tasks": "is before all rollouts",
    "qualify_environment": "plays on its own",
    "reflect_on_feedback": "reads served traffic, and of that what was scored: see tests of it",
    "requested_tasks": "makes tasks",
    "rollout_shard": "writes them",
    "select_replay": "reads what index_experience has stored; the runs here have it too",
    "test_tasks": "makes tasks",
    "update_extractor": "reads the batch of credit_experience; the runs here have it too",
    "warm_start": "is before all rollouts",
}


@dataclass(frozen=True)
class Twins:
    """Two stores with the same run; the second one's rollouts have rows that were not scored too."""

    without: Path
    with_them: Path


@pytest.fixture(scope="module", params=list(CONFIGS))
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twins:
    folder = tmp_path_factory.mktemp("twins")
    with pytest.MonkeyPatch.context() as patch:
        return Twins(
            trained(request.param, folder / "without", patch, unscored=False),
            trained(request.param, folder / "with", patch, unscored=True),
        )


def artifacts(store: Path) -> Mapping[Any, Artifact]:
    """The artifacts of the run, and of the one that was replayed offline, by run and place."""
    opened = ArtifactStore(str(store))
    return {
        (run, place): opened.open(artifact_id)
        for run in RunStore(str(store)).list()
        for place, artifact_id in ids(store, run).items()
    }


def contents(artifact: Artifact) -> dict[str, Any]:
    """Each file, by its digest; of a training record the rows of what was scored."""
    found: dict[str, Any] = {file.path: file.sha256 for file in artifact.manifest.files}
    if TRAINING_RECORD_FILE in found:
        rows = pl.read_parquet(artifact.path(TRAINING_RECORD_FILE))
        kept = rows.filter(~pl.col("not_trained").is_in(NOT_SCORED).fill_null(False))
        found[TRAINING_RECORD_FILE] = kept.to_dicts()
    return found


def metrics(artifact: Artifact) -> dict[str, float]:
    """The metrics, without those that depend on the clock."""
    return {name: value for name, value in artifact.manifest.metrics.items() if not name.endswith(TIMES)}


def counters(artifact: Artifact) -> dict[str, float]:
    ours = COUNTS_OF_ROWS.get(artifact.manifest.stage, set())
    return {
        name: value
        for name, value in artifact.manifest.counters.items()
        if ours is not None and name not in ours and not name.startswith("dropped_")
    }


def test_no_later_stage_changes_a_byte_or_a_metric(twins: Twins) -> None:
    without, with_them = artifacts(twins.without), artifacts(twins.with_them)
    assert without.keys() == with_them.keys()
    for place, artifact in with_them.items():
        if artifact.manifest.stage != "rollout_shard":
            before = without[place]
            assert artifact.manifest.artifact_id == before.manifest.artifact_id, place
            assert contents(artifact) == contents(before), place
            assert metrics(artifact) == metrics(before), place
            assert counters(artifact) == counters(before), place


def test_the_record_of_an_update_says_why_such_a_row_was_not_trained(twins: Twins) -> None:
    for artifact in artifacts(twins.with_them).values():
        if artifact.manifest.stage == "update_policy":
            record = pl.read_parquet(artifact.path(TRAINING_RECORD_FILE))
            reasons = dict(record.group_by("not_trained").len().iter_rows())
            dropped = {each: artifact.manifest.counters[f"dropped_{each}"] for each in NOT_SCORED}
            # Two shards, each with two copies of an episode for each reason.
            assert {each: reasons[each] for each in NOT_SCORED} == dropped
            assert set(dropped.values()) <= {4, 12}


def test_rollouts_count_what_was_left_out(twins: Twins) -> None:
    for artifact in artifacts(twins.with_them).values():
        if artifact.manifest.stage == "generate_rollouts":
            counts = artifact.manifest.counters
            assert [counts[reason_counter(each)] for each in NOT_SCORED] == [4] * len(NOT_SCORED)
            assert counts["episodes_not_scored"] == 4 * len(NOT_SCORED)


def test_there_is_a_task_at_which_nothing_was_scored(twins: Twins) -> None:
    shards = [each for each in artifacts(twins.with_them).values() if each.manifest.stage == "rollout_shard"]
    rows = read_trajectories([shard.path(TRAJECTORIES) for shard in shards])
    places = {(row.iteration, row.task_id) for row in rows}
    assert places - {(row.iteration, row.task_id) for row in rows if row.finish_reason not in NOT_SCORED}


def shown(store: Path) -> dict[str, Any]:
    """What reports, comparisons, questions to the memory and lists of episodes show of the run."""
    opened, run = ArtifactStore(str(store)), RunStore(str(store)).open("small")
    files = rollout_files(opened, run)
    rows, searches = scan_trajectories(files), memory_searches(files)
    figures = training_figures(opened, read_history(opened, run), run_columns(run), 2)
    left_out = {"env. error", "timeout", "scorer error", "retried", "tokens", "tokens/s"}
    return {
        "charts of rewards": role_rewards(rows, sorted(set(rows.collect()["role"]))),
        "rewards in a comparison": figures.rewards,
        "columns of a comparison": {
            column.label: figures.numbers.get(column.name)
            for column in run_columns(run)
            if column.label not in left_out
        },
        "examples": [(each.kind, each.episode_id) for each in example_episodes(rows, {})],
        "searches": searches.to_dicts(),
        "effect of memory": memory_effect(searches),
        "graded rewards": graded_rewards(rows),
        "warnings": list(
            rollout_warnings(WarningsConfig(not_scored=None, ill_formed=0.01), rows.select(ROWS).collect())
        ),
        "curve": [(point.iteration, point.success) for point in learning_curve(read_history(opened, run))],
        "score": summarize_run(opened, run).score,
        **{
            outcome: list_episodes(files, EpisodeFilter(outcome=outcome), 100)
            for outcome in ("solved", "helped", "failed")
        },
    }


def test_nothing_that_is_shown_changes(twins: Twins) -> None:
    without, with_them = shown(twins.without), shown(twins.with_them)
    for name, value in without.items():
        assert with_them[name] == value, name


def test_what_was_not_scored_is_shown_without_reward_or_success(twins: Twins) -> None:
    opened, run = ArtifactStore(str(twins.with_them)), RunStore(str(twins.with_them)).open("small")
    files = rollout_files(opened, run)
    count, episodes = list_episodes(files, EpisodeFilter(outcome="not_scored"), 100)
    assert count == 2 * 2 * 2 * len(NOT_SCORED)  # iterations, shards, copies
    assert {reward for each in episodes for reward in each["rewards"]} == {None}
    rows = scan_trajectories(files).filter(~was_scored()).collect()
    assert rows["reward"].null_count() == rows["success"].null_count() == rows.height
    facts = explain(opened, run, rows["trajectory_id"][0], 0)[1]
    assert facts["finish_reason"] == "environment_error"
    assert not {"reward", "success"} & facts.keys()


def test_the_page_shows_what_was_not_scored(twins: Twins) -> None:
    browser = client(twins.with_them)
    files = rollout_files(ArtifactStore(str(twins.with_them)), RunStore(str(twins.with_them)).open("small"))
    _, [episode, *_] = list_episodes(files, EpisodeFilter(outcome="not_scored"), 1)
    here = f"/runs/small/iterations/{episode['iteration']}"
    page = browser.get(f"{here}/episodes/{episode['episode_id']}")
    assert page.status_code == 200
    assert "not scored" in main_text(page.text)
    groups = browser.get(here)
    assert groups.status_code == 200
    assert "environment error 4" in main_text(groups.text)
    # 0 and 1 stand in the columns of rows that were not scored; neither is a reward.
    failed = {"finish_reason": "environment_error"}
    found, rewarded = (
        main_text(browser.get("/runs/small/rows", params=params).text)
        for params in (failed, {**failed, "reward": ">=0"})
    )
    assert " 0 rows " not in found
    assert " 0 rows " in rewarded


def test_every_stage_that_reads_trajectories_is_in_a_run_of_this_test() -> None:
    """A new stage must be in one of the runs, or be named above with the reason why it is not concerned."""
    found = {_code(stage) for plan in _plans() for stage in _readers(plan)}
    concerned = {_code(stage) for stage in find_stages() if stage.name not in READ_NO_TRAJECTORIES}
    assert found == concerned


def test_no_stage_that_is_named_as_reading_none_reads_any() -> None:
    read = {stage.name for plan in _plans() for stage in _readers(plan)}
    assert not read & READ_NO_TRAJECTORIES.keys()


def _plans() -> list[Plan]:
    stored = {1: "stored", 2: "stored"}
    offline = plan_offline(configured("erl"), SOURCES, OFFLINE, stored, None, iterations=2)
    return [offline, *(plan_run(configured(name), SOURCES) for name in CONFIGS)]


def _code(stage: Stage[Any]) -> str:
    return f"{stage.name} ({stage.compute.__module__}.{stage.compute.__qualname__})"


def _readers(plan: Plan) -> list[Stage[Any]]:
    """The stages with an input that holds trajectories of rollouts, or lists them."""
    kinds = {"stored": "rollouts"} | {node.artifact_id: node.recipe.kind for node in plan.nodes}
    return [
        node.stage
        for node in plan.nodes
        if {"rollouts", "trajectories"} & {kinds.get(each) for each in node.recipe.inputs.values()}
    ]

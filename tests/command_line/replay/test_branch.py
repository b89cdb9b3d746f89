"""Branches, each on a copy of one small run."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from pathlib import Path

import pytest

from erl_pipeline.policies.embedding import SentenceEmbedder
from storage.artifacts.store import ArtifactStore
from storage.memory.versions import latest_version
from storage.memory.view import ReflectionMemory
from storage.runs.run import RunStore
from tests import forked
from tests.command_line.invoke import FinishedRun, invoke
from tests.command_line.replay.stores import entries, file_hashes, replay
from tests.integration.runs import artifact_hashes


def test_a_branch_shares_what_is_before_its_stage_and_computes_the_rest(store: Path) -> None:
    before = file_hashes(store)
    words = ["small", "--iteration", "2", "--from", "update_policy", "--set", "optimizer.learning_rate=0.001"]
    result = replay(store, *words, "--name", "fast")
    assert result.status == 0, result.errors
    ours, theirs = entries(store, "small"), entries(store, "fast")
    assert ours.keys() == theirs.keys()
    changed = {place for place in ours if ours[place] != theirs[place]}
    # The dataset depends only on the rollouts: its recipe is the same.
    assert changed == {(2, "update_policy", ""), (2, "fine_tune", ""), (2, "evaluate", "")}
    assert result.json["computed"] == 3
    assert result.json["shared"] == len(ours) - 3
    counts = f"{len(ours) - 3} artifacts, {len(ours) - 4} before update_policy of iteration 2 and 1 after it"
    assert f"Branch of small: shares {counts}" in result.errors
    assert result.json["origin"] == {
        "type": "branch",
        "run": "small",
        "iteration": 2,
        "stage": "update_policy",
    }
    after = file_hashes(store)
    assert {path: after[path] for path in before} == before
    reused = {(e.iteration or 0, e.stage): e.reused for e in RunStore(str(store)).open("fast").stages()}
    assert [reused[1, "fine_tune"], reused[2, "generate_rollouts"], reused[2, "update_policy"]] == [
        True,
        True,
        False,
    ]

    again = replay(store, *words, "--name", "fast")
    assert again.status == 0
    assert [row["iteration"] for row in again.json["rows"]] == [0, 1, 2]
    shown = invoke("replay", *words, "--name", "fast", "--store", store).output
    assert shown.startswith("Iterations before 2 are those of small; `status fast` shows all.\n")
    iterations = [line.split()[0] for line in shown.splitlines() if line.split()[:1]]
    assert [each for each in iterations if each.isdigit()] == ["2"]
    assert entries(store, "fast") == theirs
    assert file_hashes(store).keys() == after.keys()


def test_a_branch_goes_on_beyond_the_run_and_train_continues_it(store: Path, finished: FinishedRun) -> None:
    words = ["small", "--iteration", "2", "--from", "generate_rollouts", "--set", "sampling.temperature=0.9"]
    result = replay(store, *words, "--iterations", "3", "--name", "cool")
    assert result.status == 0, result.errors
    assert [row["iteration"] for row in result.json["rows"]] == [0, 1, 2, 3]
    assert ", all before generate_rollouts of iteration 2\n" in result.errors
    three = entries(store, "cool")
    assert three[1, "generate_rollouts", ""] == entries(store, "small")[1, "generate_rollouts", ""]
    assert three[2, "generate_rollouts", ""] != entries(store, "small")[2, "generate_rollouts", ""]

    settings = ["--set", "sampling.temperature=0.9", "--name", "cool", "--iterations", "4"]
    trained = invoke("train", finished.config, *settings, "--store", store, "--no-prefect", "--json")
    assert trained.status == 0, trained.errors
    four = entries(store, "cool")
    assert {place: four[place] for place in three} == three
    assert (4, "fine_tune", "") in four


def test_what_was_forgotten_stays_forgotten_in_a_branch(remembering: FinishedRun, tmp_path: Path) -> None:
    """Also in the memory version that a branch from the end of an iteration shares with the run."""
    store = tmp_path / "store"
    shutil.copytree(remembering.store, store)
    held = memory_ids(store, "small", 1)
    assert held
    assert invoke("memory", "forget", "small", held[0], "--reason", "test", "--store", store).status == 0
    for stage in ("generate_rollouts", "fine_tune"):
        words = ["--iteration", "2", "--from", stage, "--set", "fine_tune.steps=2", "--name", stage]
        result = replay(store, "small", *words, "--iterations", "3")
        assert result.status == 0, result.errors
        assert memory_ids(store, stage, 1) == held
        later = set(memory_ids(store, stage, 3))
        assert held[0] not in later
        assert set(held[1:]) <= later
        assert replay(store, stage, "--iteration", "3", "--from", "generate_rollouts").status == 0
        assert invoke("lineage", "verify", stage, "--store", store).status == 0


def test_the_command_that_forget_gives_trains_again_without_the_entry(
    remembering: FinishedRun, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(remembering.store, store)
    entry = memory_ids(store, "small", 1)[0]
    said = invoke("memory", "forget", "small", entry, "--reason", "test", "--store", store)
    *_, told, line = said.output.splitlines()
    assert told == "To train again from before the entry (iteration 1), as a new run:"
    words = shlex.split(line)[1:]
    name = f"small-without-{entry[:8]}"
    assert words[:8] == ["replay", "small", "--iteration", "1", "--from", "index_memory", "--name", name]
    again = invoke(*words)
    assert again.status == 0, again.errors
    assert "Branch of small: shares" in again.errors
    for iteration in (1, 2, 3):
        assert entry not in memory_ids(store, name, iteration)
    assert set(memory_ids(store, "small", 1)) - {entry} == set(memory_ids(store, name, 1))
    assert invoke("lineage", "verify", name, "--store", store).status == 0


def memory_ids(store: Path, run: str, iteration: int) -> list[str]:
    """Entries that the memory held after an iteration."""
    artifacts, opened = ArtifactStore(str(store)), RunStore(str(store)).open(run)
    memory = ReflectionMemory(str(store), run, artifacts, SentenceEmbedder("all-MiniLM-L6-v2"))
    return list(memory.at(latest_version(opened, iteration)).entries()["entry_id"])


@pytest.mark.parametrize(
    ("stage", "setting", "said"),
    [
        ("fine_tune", "optimizer.learning_rate=0.001", "change update_policy, which comes before fine_tune"),
        (
            "update_policy",
            "method.max_revisions=2",
            "change rollout_shard, which comes before update_policy",
        ),
        (
            "update_policy",
            "environment.max_steps=3",
            "change prepare_tasks, which comes before update_policy",
        ),
        ("update_policy", "seed=5", "(seed: 0 -> 5); it is made once for all iterations"),
        ("generate_rollouts", "policy.layers=3", "change bootstrap, which comes before generate_rollouts"),
        (
            "fine_tune",
            "distillation=off",
            '(distillation.form: null -> "off"); begin the branch there with --from build_d',
        ),
        ("evaluate", "optimizer.learning_rate=0.001", "change update_policy, which comes before evaluate"),
        ("update_policy", "update.epochs=1", "run small has these settings already"),
        ("update_policy", "name=other", "--set name=other: use --name"),
        ("update_policy", "iterations=9", "--set iterations=9: use --iterations"),
        ("update_policy", "update.epoch=2", "--set: update.epoch: unknown key; did you mean epochs?"),
        (
            "rollout_shard",
            "update.epochs=2",
            "--from rollout_shard: the stages of iteration 2 are generate_rollouts, index_m",
        ),
    ],
)
def test_settings_of_what_is_shared_are_refused(
    stage: str, setting: str, said: str, finished: FinishedRun
) -> None:
    words = ["small", "--iteration", "2", "--from", stage, "--set", setting, "--name", "refused"]
    result = replay(finished.store, *words)
    assert result.status == 2
    assert said in result.errors
    assert RunStore(str(finished.store)).list() == ["small"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--iteration", "2"], "say where to begin"),
        (["--iteration", "3", "--from", "evaluate"], "run small ended in iteration 2; 1 to 2 are allowed"),
        (
            ["--iteration", "0", "--from", "update_policy"],
            "the stages of iteration 0 are prepare_tasks, boots",
        ),
        (["--iteration", "2", "--from", "evaluate", "--set", "update.epochs=2"], "name it with --name NAME"),
        (
            ["--iteration", "9", "--from", "evaluate", "--set", "update.epochs=2", "--name", "x"],
            "run small ended in iteration 2; a branch can begin in iteration 1 to 3",
        ),
        (
            ["--iteration", "3", "--from", "fine_tune", "--set", "update.epochs=2", "--name", "x"],
            "run small ended in iteration 2; it has no rollout_shard 0000 of iteration 3, which comes before",
        ),
        (["--from", "evaluate", "--iteration", "1..2"], "allowed is one iteration; A..B only with --offline"),
        (
            ["--offline", "--iteration", "2..1", "--name", "x"],
            "--iteration 2..1: the first is after the last",
        ),
        (["--offline", "--iteration", "2..3", "--name", "x"], "no rollouts of iteration 3; it has 1 to 2"),
        (["--offline", "--name", "x"], "--offline needs --iteration A..B"),
        (["--offline", "--iteration", "1..2", "--name", "small"], "--name small: stored artifacts are never"),
        (
            ["--offline", "--iteration", "1..2", "--name", "x", "--iterations", "1"],
            "no meaning with --offline",
        ),
        (["--iteration", "1", "--from", "evaluate", "--no-evaluation"], "a meaning only with --offline"),
    ],
)
def test_mistakes_are_told(words: list[str], said: str, finished: FinishedRun) -> None:
    result = replay(finished.store, "small", *words)
    assert result.status == 2
    assert said in result.errors


@pytest.mark.slow
def test_a_branch_that_was_interrupted_continues_to_the_same_bytes(store: Path, tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    shutil.copytree(store, undisturbed)
    words = [
        "small",
        "--iteration",
        "1",
        "--from",
        "update_policy",
        "--set",
        "update.epochs=2",
        "--name",
        "twice",
    ]
    process = forked.start("replay", *words, "--store", store)
    for line in process.stderr:
        if line.startswith("iteration 1/2"):
            os.killpg(process.pid, signal.SIGINT)
            break
    stopped = process.end()
    assert stopped.status == 130
    assert "Stopped. What was committed is kept; continue with: " in stopped.errors
    assert (2, "evaluate", "") not in entries(store, "twice")

    assert replay(store, *words).status == 0
    assert replay(undisturbed, *words).status == 0
    assert artifact_hashes(store, "twice") == artifact_hashes(undisturbed, "twice")


def test_a_name_stands_for_one_branch(store: Path) -> None:
    branch = ["small", "--from", "evaluate", "--set", "evaluation.samples_per_task=1", "--name", "sampled"]
    assert replay(store, *branch, "--iteration", "2").status == 0
    moved = replay(store, *branch, "--iteration", "1")
    assert moved.status == 2
    assert "was begun from evaluate in iteration 2 of small, not from evaluate in iteration 1" in moved.errors
    other = replay(store, *branch, "--iteration", "2", "--set", "evaluation.samples_per_task=2")
    assert other.status == 2
    assert "evaluation.samples_per_task: 1 -> 2" in other.errors
    taken = replay(store, "sampled", *branch[1:-1], "small", "--iteration", "2")
    assert taken.status == 2

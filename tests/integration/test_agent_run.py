"""Training on what an agent asks: from its calls to a checkpoint, and back."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.evaluation.samples import count_samples
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.audit import audit
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.evaluation.evaluate import EVALUATION
from erl_pipeline.stages.names import AGENT_CALLS, NOTE_TRIALS, TRAJECTORIES
from storage.artifacts.store import ArtifactStore
from storage.lineage.trained_on import RowFilter, TrainedOn
from storage.memory.credit import rollout_files
from storage.runs.run import RunStore
from storage.tables.agent_calls import scan_agent_calls
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.training import TRAINING_RECORD_FILE, scan_training_records
from storage.tables.trajectories import read_trajectories, scan_trajectories
from storage.upkeep.verification import verify_run
from tests.command_line.invoke import invoke
from tests.command_line.ui.clients import client, main_text
from tests.erl_pipeline.episodes.gateway import agents
from tests.erl_pipeline.runs.small_runs import SMALL, go
from tests.random_models import save_byte_llama


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    save_byte_llama(tmp_path / "model", positions=2048, layers=1)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": f"task {n}"}) + "\n" for n in range(8)))
    changes: dict[str, Any] = {
        "name": "agents",
        "method": {"type": "erl"},
        "environment": {
            "type": "agent",
            "training_file": str(tasks),
            "held_out_share": 0.25,
            "function": f"{agents.__name__}:{agents.branches_and_varies.__name__}",
        },
        "policy": {"type": "pretrained", "model": str(tmp_path / "model")},
        "sampling": {"max_new_tokens": 6},
        "rollouts": {"tasks_per_iteration": 2, "group_size": 4, "tasks_per_shard": 1},
    }
    return RunConfig.model_validate({**SMALL, **changes})


def test_an_agent_is_trained_and_each_of_its_sequences_counts_with_its_attempt(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts have two sequences each. Groups compare attempts, and both sequences get the advantage."""
    store_folder = tmp_path / "store"
    notes = go(config, store_folder, iterations=1)
    store = ArtifactStore(str(store_folder))
    shards = [store.open(each) for each in store.ids("rollout_shard")]
    rows = read_trajectories([shard.path(TRAJECTORIES) for shard in shards])
    further = read_trajectories([shard.path(FURTHER_SEQUENCES) for shard in shards])
    attempts = [row for row in rows if row.role != "reflection"]
    assert {row.finish_reason for row in attempts} == {"done"}
    assert Counter(row.parent_trajectory_id for row in further) == Counter(
        row.trajectory_id for row in attempts
    )
    assert [row.reward for row in rows if row.role == "first_attempt"].count(0.0) < 8

    (update,) = [store.open(each) for each in store.ids("update_policy")]
    record = scan_training_records([update.path(TRAINING_RECORD_FILE)]).collect()
    advantages = dict(record.select("trajectory_id", "advantage").iter_rows())
    assert advantages.keys() == {row.trajectory_id for row in (*rows, *further)}
    for row in further:
        assert advantages[row.trajectory_id] == advantages[row.parent_trajectory_id]
    for group in {row.group_id for row in rows}:
        of_group = [advantages[row.trajectory_id] for row in rows if row.group_id == group]
        assert sum(of_group) == pytest.approx(0.0, abs=1e-5)
    trained = [row for row in further if advantages[row.trajectory_id]]
    assert trained

    # An episode is shown with its attempts, each with five calls in two sequences.
    shown = invoke("episodes", "show", rows[0].episode_id, "--store", str(store_folder), "--json").json
    played = [each for each in shown["trajectories"] if each["role"] != "reflection"]
    assert {each["trajectory_id"] for each in played} <= {row.trajectory_id for row in attempts}
    assert {tuple(call["sequence_index"] for call in each["calls"]) for each in played} == {(0, 0, 0, 1, 1)}
    printed = invoke("episodes", "show", rows[0].episode_id, "--store", str(store_folder)).output
    assert printed.count(": chat; sequence 2, tokens ") == 2 * len(played)

    # The agent plays it again with the answers that it got, and says where it would ask something else.
    again = ("episodes", "replay", rows[0].episode_id, "--store", str(store_folder))
    replayed = invoke(*again, "--json")
    assert (replayed.status, replayed.json["equal"]) == (0, True)
    assert [each["answers"] for each in replayed.json["attempts"]] == [5] * len(played)
    assert "5 recorded answers given; reward" in invoke(*again).output
    monkeypatch.setattr(agents, "branches_and_varies", agents.asks_once)
    differs = invoke(*again)
    assert differs.status == 2
    assert "the agent asks something else than it did" in differs.errors
    monkeypatch.undo()

    # An evaluation keeps the same of its attempts: 2 tasks, each played twice, before and after training.
    for evaluation in map(store.open, store.ids("evaluate")):
        held_out = read_trajectories([evaluation.path(EVALUATION)])
        beside = read_trajectories([evaluation.path(FURTHER_SEQUENCES)])
        assert len(held_out) == evaluation.manifest.counters["trajectories"] == 4
        assert [row.parent_trajectory_id for row in beside] == [row.trajectory_id for row in held_out]
    listed = ("episodes", "list", config.name, "--held-out", "--store", str(store_folder), "--json")
    assert invoke(*listed).json["episodes"] == 2 * 4
    page, episode = client(store_folder), held_out[0].episode_id
    place = f"/runs/{config.name}/iterations/{held_out[0].iteration}/episodes/{episode}"
    assert "2 token sequences" in main_text(page.get(place).text)
    assert "8 rows" in main_text(page.get(f"/runs/{config.name}/rows?held_out=true").text)
    shown = invoke("episodes", "show", episode, "--store", str(store_folder), "--json").json
    (attempt,) = shown["trajectories"]
    assert [call["sequence_index"] for call in attempt["calls"]] == [0, 0, 0, 1, 1]
    replayed = invoke("episodes", "replay", episode, "--store", str(store_folder), "--json")
    assert replayed.json["equal"], replayed.json
    assert verify_run(store, RunStore(str(store_folder)).open(config.name)).problems == []

    # The lineage of the checkpoint leads to each of the sequences, and to what was said in it.
    (checkpoint,) = store.ids("fine_tune")
    learned = TrainedOn(store, checkpoint)
    texts = dict(
        learned.texts(learned.rows(RowFilter()).collect())
        .select("trajectory_id", "text")
        .drop_nulls()
        .iter_rows()
    )
    assert texts.keys() >= {row.trajectory_id for row in trained}
    assert not notes.warnings

    # Calls at the same time may be sampled in other batches; the times of calls never count.
    folder, quiet = tmp_path / "scratch", threading.Event()
    audited = audit(str(store_folder), config.name, 1, "generate_rollouts", 1, folder, Listener(), quiet)
    found = [each for each in audited if each.stage == "rollout_shard"]
    assert {each.verdict for each in found} <= {"equal", "not promised"}
    assert not [line for each in found for line in each.differences if AGENT_CALLS in line]
    # An attempt is one sample, and one use of what memory gave, however many sequences it has.
    run = RunStore(str(store_folder)).open("agents")
    counted = count_samples(store, run)
    assert not counted.problems
    assert {each.role: each.generated for each in counted.counts}["first_attempt"] == 8
    assert scan_trajectories(rollout_files(store, run)).collect().height == len(rows)


def test_methods_are_compared_with_an_agent_on_tasks_that_were_set_aside(
    config: RunConfig, tmp_path: Path
) -> None:
    """Of eight tasks two are held out and two set aside."""
    base = tmp_path / "agents.yaml"
    settings = config.model_dump(mode="json", exclude_unset=True)
    settings["environment"]["test_share"] = 0.25
    base.write_text(json.dumps(settings))
    places = ("--store", tmp_path / "store", "--output", tmp_path / "out", "--allow-dirty")
    more = ("--methods", "erl,rlvr", "--seeds", 2, "--iterations", 1)
    compared = invoke("compare", base, *more, *places)
    assert compared.status == 0, compared.errors
    document = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert (document["test_tasks"], document["failures"]) == (2, [])
    assert document["arms"].keys() == {"erl", "rlvr"}


def test_instructions_are_tried_in_the_system_message_of_an_agent(config: RunConfig, tmp_path: Path) -> None:
    """Rewards differ whatever the policy says, so that some proposal is likely to be adopted."""
    settings = config.model_dump(mode="json", exclude_unset=True)
    settings["method"] = {"type": "prompt_evolution", "tasks": 2, "candidates": 2}
    settings |= {"evaluation": {"tasks": 2}}
    go(RunConfig.model_validate(settings), tmp_path / "store", iterations=1)
    store = ArtifactStore(str(tmp_path / "store"))
    (tried,) = [store.open(each) for each in store.ids("try_notes")]
    table = pl.read_parquet(tried.path(NOTE_TRIALS)).filter(pl.col("reward").is_not_null())
    proposals = dict(enumerate(table["text"], start=1))
    assert proposals
    rows = read_trajectories([tried.path(TRAJECTORIES)])
    assert {row.revision_index for row in rows} == {0, *proposals}
    for row in rows:
        first = json.loads(row.messages)[0]
        if row.revision_index == 0:
            assert first["role"] == "user"
        else:
            assert (first["role"], first["content"].strip()) == (
                "system",
                proposals[row.revision_index].strip(),
            )
    further = read_trajectories([tried.path(FURTHER_SEQUENCES)])
    assert [row.parent_trajectory_id for row in further] == [row.trajectory_id for row in rows]
    assert scan_agent_calls([tried.path(AGENT_CALLS)]).collect().height == 5 * len(rows)


def test_a_replay_notices_another_system_message(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an episode whose second attempt had a reflection in it."""
    named = f"{agents.__name__}:{agents.says_the_day.__name__}"
    environment = config.environment.model_copy(update={"function": named})
    chosen = config.model_copy(update={"environment": environment})
    go(chosen, tmp_path / "store", iterations=1, stop_after="generate_rollouts of iteration 1")
    store = ArtifactStore(str(tmp_path / "store"))
    rows = read_trajectories([store.open(each).path(TRAJECTORIES) for each in store.ids("rollout_shard")])
    again = next(row.episode_id for row in rows if row.role == "second_attempt")
    replay = ("episodes", "replay", again, "--store", str(tmp_path / "store"), "--json")
    assert invoke(*replay).json["equal"]
    monkeypatch.setattr(agents, "days", ["Today is Tuesday."])
    differs = invoke(*replay)
    assert (differs.status, "the agent asks something else than it did" in differs.errors) == (2, True)


def test_a_run_of_an_agent_that_is_continued_goes_on_where_it_was(config: RunConfig, tmp_path: Path) -> None:
    store = tmp_path / "store"
    go(config, store, iterations=2, stop_after="generate_rollouts of iteration 2")
    notes = go(config, store, iterations=2)
    assert not notes.warnings
    assert not go(config, store, iterations=2).made


def test_an_edited_file_of_the_agent_changes_what_is_sampled_and_its_tasks_alone_do_not(
    config: RunConfig, tmp_path: Path
) -> None:
    """The agent's files are copied into an artifact that the tasks, and so the rollouts, depend on."""
    source = tmp_path / "source.py"

    def ids(code: str, **more: Any) -> dict[str, str]:
        source.write_text(code)
        environment = {
            **config.environment.model_dump(),
            "function": None,
            "command": ["python", "agent.py"],
            "files": {"agent.py": str(source)},
            **more,
        }
        chosen = config.model_copy(update={"environment": AgentConfig.model_validate(environment)})
        plan = plan_run(chosen, read_sources(chosen))
        return {node.stage.name: node.artifact_id for node in plan.nodes if node.iteration in (None, 1)}

    before, after = ids("1"), ids("2")
    assert before["rollout_shard"] != after["rollout_shard"]
    assert before["bootstrap"] == after["bootstrap"]
    assert ids("1") == before
    assert ids("1", env={"MODE": "fast"})["rollout_shard"] != before["rollout_shard"]

"""`erl-pipeline lineage samples|trained-on`, on the small run and on a store written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.training import TRAINING_RECORD_FILE, scan_training_records
from tests.command_line.invoke import FinishedRun, invoke
from tests.training_stores import TrainingStore, write_training_store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainingStore:
    return write_training_store(str(tmp_path_factory.mktemp("made") / "store"))


def test_the_samples_of_a_trained_run_add_up(finished: FinishedRun) -> None:
    result = invoke("lineage", "samples", "small", "--store", finished.store)
    assert (result.status, result.errors) == (0, "")
    assert "all counts add up" in result.output
    found = invoke("lineage", "samples", "small", "--store", finished.store, "--json").json
    assert found["adds_up"]
    assert found["problems"] == []
    for each in found["samples"] + found["totals"]:
        assert each["issued"] == each["generated"] == each["trained"] + sum(each["dropped"].values())
    # Four tasks, four episodes of each, in two iterations.
    assert [each["issued"] for each in found["totals"] if each["role"] == "first_attempt"] == [32]
    second = invoke(
        "lineage", "samples", "small", "--store", finished.store, "--iteration", "2", "--json"
    ).json
    assert {each["iteration"] for each in second["samples"]} == {2}
    # Of one iteration the sums over all would be the same rows again.
    words = ["lineage", "samples", "small", "--store", finished.store, "--iteration", "2"]
    shown = [line.split()[0] for line in invoke(*words).output.splitlines() if " first_attempt " in line]
    assert shown == ["2"]
    assert " all " in result.output


def test_the_records_of_a_trained_run_are_what_its_manifests_count(finished: FinishedRun) -> None:
    store = ArtifactStore(str(finished.store))
    for entry in RunStore(str(finished.store)).open("small").stages():
        if entry.kind != "checkpoint" or entry.iteration is None:
            continue
        artifact = store.open(entry.artifact_id)
        counters, metrics = artifact.manifest.counters, artifact.manifest.metrics
        rows = scan_training_records([artifact.path(TRAINING_RECORD_FILE)]).collect()
        trained = rows.filter(rows["not_trained"].is_null())
        assert rows["trained_tokens"].sum() == counters["trained_tokens"]
        if "sequences" in counters:
            assert trained.height == counters["sequences"]
            assert (
                rows.filter(rows["not_trained"] == "zero_advantage").height
                == counters["dropped_zero_advantage"]
            )
            assert trained["loss"].sum() == pytest.approx(metrics["policy_loss"], abs=1e-5)
            assert (rows["advantage"] == 0.0).to_list() == (
                rows["not_trained"] == "zero_advantage"
            ).fill_null(False).to_list()
            dead = sum(value for name, value in counters.items() if name.startswith("zero_advantage_groups_"))
            # The halves of a group that memory splits are compared separately.
            live = trained.select("group_id", "subgroup").n_unique()
            assert rows.select("group_id", "subgroup").n_unique() == live + dead
        else:
            assert trained.height == counters["rows"]


def test_counts_that_do_not_add_up_end_with_status_1(tmp_path: Path) -> None:
    made = write_training_store(str(tmp_path / "store"))
    made.commit(
        "rollouts-9",
        "rollouts",
        2,
        inputs={"shard-0000": "shard-2"},
        reflection_count=5,
        reflection_successes=0,
    )
    result = invoke("lineage", "samples", "run", "--store", made.store.uri)
    assert result.status == 1
    assert "wrong: iteration 2, reflection: 5 issued and 0 generated\n" in result.output
    assert "1 count does not add up" in result.output
    found = invoke("lineage", "samples", "run", "--store", made.store.uri, "--json")
    assert (found.status, found.json["adds_up"], len(found.json["problems"])) == (1, False, 1)


def test_trained_on_tells_rows_rewards_and_texts(made: TrainingStore) -> None:
    result = invoke("lineage", "trained-on", made.ids["update-2"][:16], "--store", made.store.uri)
    assert result.status == 0
    assert "learned from 4 rows of 2 tasks.\n" in result.output
    assert "go | right" in result.output
    # The rows by the ids that the next question takes.
    for row in ("first-2", "s-second", "reflection", "second"):
        assert f" {row} " in result.output
    assert "Where a row came from: erl-pipeline lineage upstream run ROW\n" in result.output
    assert "No memory entry stood in the prompts of these rows.\n" in result.output
    found = invoke(
        "lineage", "trained-on", made.ids["update-2"], "--store", made.store.uri, "--limit", "2", "--json"
    ).json
    assert (found["total"], len(found["rows"])) == (4, 2)
    assert [row["text"] for row in found["rows"]] == ["up", "right"]
    assert [row["reward"] for row in found["rows"]] == [0.0, 1.0]
    assert [each["stage"] for each in found["policies"]] == ["update", "tuned", "update", "bootstrap"]
    summary = {(each["how"], each["role"]): each["rows"] for each in found["summary"]}
    assert summary == {
        ("directly", "first_attempt"): 1,
        ("by inheritance", "distilled"): 1,
        ("by inheritance", "reflection"): 1,
        ("by inheritance", "second_attempt"): 1,
    }


def test_trained_on_follows_a_trained_run_to_its_first_update(finished: FinishedRun) -> None:
    samples = invoke("lineage", "samples", "small", "--store", finished.store, "--json").json
    entries = RunStore(str(finished.store)).open("small").stages()
    last = [entry.artifact_id for entry in entries if entry.kind == "checkpoint"][-1]
    words = ("lineage", "trained-on", last, "--store", finished.store)
    found = invoke(*words, "--limit", "1000", "--json").json
    assert found["total"] == len(found["rows"]) == sum(each["trained"] for each in samples["totals"])
    assert all(row["text"] for row in found["rows"])
    for selector in ("latest", "iteration:2"):
        same = ("lineage", "trained-on", selector, "--run", "small", "--store", finished.store, "--json")
        assert invoke(*same).json["checkpoint"] == found["checkpoint"]
    said = " ".join(invoke(*words).output.split())
    assert "by inheritance: in the trainings before it, also update_policy of the same iteration" in said
    first, *_ = found["memory_entries"]
    assert f"in the prompts of these rows: {first['entry_id'][:12]}" in said
    succeeded = invoke(*words, "--success", "--role", "distilled", "--limit", "1000", "--json").json
    assert {row["success"] for row in succeeded["rows"]} <= {True}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["samples", "rum"], "Did you mean run?"),
        (["samples", "run", "--iteration", "7"], "run run has no samples of iteration 7"),
        (["samples", "run", "--iteration", "x"], "--iteration x: give one, such as 7, or a range"),
        (["trained-on", "nothing"], "no artifact nothing; allowed: an id, latest, iteration:N"),
        (["trained-on", "latset", "--run", "run"], "no artifact latset; allowed: an id, latest, iteration:N"),
        (["trained-on", "latest"], "latest: of which run? Name it with --run RUN."),
    ],
)
def test_mistakes_are_named_with_status_2(made: TrainingStore, words: list[str], said: str) -> None:
    result = invoke("lineage", *words, "--store", made.store.uri)
    assert result.status == 2
    assert said in result.errors


def test_a_role_that_no_row_has_is_refused(made: TrainingStore) -> None:
    words = ("lineage", "trained-on", made.ids["update-2"], "--store", made.store.uri, "--role")
    told = invoke(*words, "nonsense")
    assert told.status == 2
    assert "--role nonsense: no row has this role; the rows are of distilled, first_attempt" in told.errors
    assert invoke(*words, "first_attempt").status == 0


def test_what_is_not_a_checkpoint_is_refused(made: TrainingStore) -> None:
    result = invoke("lineage", "trained-on", made.ids["rollouts"], "--store", made.store.uri)
    assert (result.status, "is of kind rollouts; give a checkpoint" in result.errors) == (2, True)

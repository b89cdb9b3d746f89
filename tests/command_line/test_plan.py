"""`plan`, `train --dry-run` and `plugins`, on one finished run; forecasts themselves are tested by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line.train.run import computed_again, reused_from
from erl_pipeline.plan.forecast import Forecast, Reason, StageForecast
from storage.runs.run import RunStore
from tests.command_line.invoke import FinishedRun, invoke
from tests.erl_pipeline.plan.test_forecast import plan_of


def test_a_finished_run_has_nothing_to_compute_and_nothing_is_run(finished: FinishedRun) -> None:
    shown = invoke("plan", "small", "--store", finished.store, "--json").json
    entries = RunStore(str(finished.store)).open("small").stages()
    assert (shown["computed"], shown["reused"]) == (0, len(entries))
    assert {each["artifact_id"] for each in shown["artifacts"]} == {each.artifact_id for each in entries}
    text = invoke("plan", finished.config, "--store", finished.store).output
    assert f"Reused: {len(entries)} artifacts ({len(entries)} of small).\nNothing is computed.\n" in text


def test_a_dry_run_is_the_plan(finished: FinishedRun, tmp_path: Path) -> None:
    words = [finished.config, "--store", finished.store, "--iterations", "3"]
    planned = invoke("plan", *words)
    assert invoke("train", *words, "--dry-run").output == planned.output
    assert "Computed: 8 artifacts, about" in planned.output
    assert "medians of the newest 5 artifacts of each stage in run small.\n" in planned.output
    assert invoke("train", finished.config, "--store", tmp_path / "new", "--dry-run").status == 0
    assert not (tmp_path / "new" / "runs").exists()


def test_a_changed_setting_is_named(finished: FinishedRun) -> None:
    words = ["--set", "update.epochs=2", "--set", "name=other"]
    shown = invoke("plan", finished.config, "--store", finished.store, *words, "--json").json
    why = {(each["iteration"], each["stage"]): each["why"] for each in shown["artifacts"]}
    assert why[1, "update_policy"] == ["update.epochs: 1 -> 2"]
    assert why[2, "rollout_shard"][-1].startswith("inputs checkpoint (fine_tune of iteration 1)") or why[
        2, "rollout_shard"
    ] == ["input checkpoint (fine_tune of iteration 1) is computed again"]
    assert (
        "update.epochs: 1 -> 2" in invoke("plan", finished.config, "--store", finished.store, *words).output
    )


def test_before_the_table_it_says_that_a_new_name_is_needed(finished: FinishedRun) -> None:
    changed = ("plan", "small", "--store", finished.store, "--set", "optimizer.learning_rate=0.5")
    lines = invoke(*changed).output.splitlines()
    needed = "To train this, give it a new --name: `train` refuses other settings for run small."
    assert lines[1] == needed
    assert lines[-1].startswith("`train` refuses this: run small exists with other settings: optimizer.lear")
    assert invoke(*changed, "--json").json["needs_new_name"]
    assert needed not in invoke("plan", "small", "--store", finished.store).output
    assert invoke(*changed, "--set", "name=other").output.count("--name") == 0


def test_the_run_that_is_compared_is_named_and_one_of_another_kind_is_not_compared(
    finished: FinishedRun,
) -> None:
    words = ["plan", finished.config, "--store", finished.store, "--set", "name=other"]
    named = "Reasons: compared with run small, whose settings differ least from these.\n"
    alike = invoke(*words, "--set", "seed=1")
    assert "seed: 0 -> 1" in alike.output
    assert named in alike.output
    assert named not in invoke("plan", "small", "--store", finished.store, "--iterations", "3").output
    sokoban = "environment={type: sokoban}"
    strange = invoke(*words, "--set", sokoban, "--json")
    assert strange.status == 0, strange.errors
    assert {tuple(each["why"])[:1] for each in strange.json["artifacts"]} == {("new",)}


def test_a_run_of_another_model_says_nothing_of_times_and_sizes(finished: FinishedRun) -> None:
    words = ["plan", finished.config, "--store", finished.store, "--set", "name=other", "--set"]
    alike = invoke(*words, "seed=5").output
    assert "in run small (same policy, environment and trainer).\n" in alike
    wide = invoke(*words, "policy.hidden_size=128").output
    assert "Unknown, since no run that trains this model has an artifact of it: bootstrap" in wide
    assert "Estimated from the size of the model: bootstrap, update_policy, fine_tune;" in wide
    assert "medians" not in wide


def test_what_replay_would_compute(finished: FinishedRun) -> None:
    words = ["plan", "small", "--store", finished.store, "--from", "fine_tune", "--iteration", "2", "--json"]
    again = invoke(*words).json
    assert [each["stage"] for each in again["artifacts"] if each["verdict"] == "computed"] == [
        "fine_tune",
        "evaluate",
    ]
    branch = invoke(*words, "--set", "fine_tune.steps=5").json
    assert branch["computed"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["small", "--from", "evaluate"], "give both"),
        (["small", "--from", "nothing", "--iteration", "1"], "--from nothing: the stages of iteration 1 are"),
        (["none.yaml"], "none.yaml: no such file"),
        (["none"], "no run none in store"),
    ],
)
def test_mistakes_are_told(finished: FinishedRun, words: list[str], said: str) -> None:
    result = invoke("plan", *words, "--store", finished.store)
    assert (result.status, said in result.errors) == (2, True)


def test_train_says_what_it_reuses_and_why_it_does_things_again() -> None:
    first, second, *rest = plan_of(2).nodes
    changed = Reason("the code of lake has changed")
    found = Forecast(
        (
            StageForecast(first, "reused", "older"),
            StageForecast(second, "reused", "small"),
            *(StageForecast(node, "computed", "", (changed,), "small") for node in rest),
        )
    )
    assert reused_from(found, "small") == ["Reused: 1 artifact of run older (tasks)"]
    assert computed_again(found) == ["The code of lake has changed: iterations 1 to 2 are computed again"]


def test_plugins_are_listed_with_their_packages() -> None:
    listed = invoke("plugins", "--json").json
    found = {(each["group"], each["type"]): each for each in listed["plugins"]}
    assert found["methods", "erl"]["distribution"] == "erl-pipeline"
    fingerprints = found["environments", "frozen_lake"]["fingerprint"].split(", ")
    # Its own code, what it shares with Sokoban and with all environments, and the prompts of methods.
    assert [each[:2] for each in fingerprints] == ["2-"] * 4
    assert [len(each) for each in fingerprints] == [34] * 4


def test_on_one_worker_a_simulated_run_takes_the_sum_of_its_stages(
    finished: FinishedRun, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("nodes:\n  here: {devices: 1, workers: 1, overhead_seconds: 0}\n")
    words = ["plan", "small", "--store", finished.store, "--cluster", cluster]
    shown = invoke(*words, "--json").json
    entries = RunStore(str(finished.store)).open("small").stages()
    assert shown["makespan"] == pytest.approx(sum(entry.seconds for entry in entries))
    assert shown["measured"]["runs"] == {"small": len(entries)}
    assert (shown["moved"]["downloaded"], shown["moved"]["uploaded"]) == (0, 0)
    assert [each["change"] for each in shown["variants"]] == [
        "pipeline.lag: 1",
        "rollouts.tasks_per_shard: 1",
        "nodes.here.count: 2",
    ]
    # On one worker nothing can overlap.
    assert shown["variants"][0]["makespan"] == pytest.approx(shown["makespan"])
    assert "Critical path, by stage:" in invoke(*words).output


def test_a_cluster_that_is_not_there_is_refused(finished: FinishedRun) -> None:
    result = invoke("plan", "small", "--store", finished.store, "--cluster", "none.yaml")
    assert result.status == 2
    assert "none.yaml: no such file" in result.errors

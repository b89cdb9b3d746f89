"""The file of a comparison, its arms and its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from erl_pipeline.comparison.arms import (
    Arm,
    Given,
    arm_of_method,
    arm_of_settings,
    load_arm,
    read_comparison,
)
from erl_pipeline.comparison.design import make_design, with_chosen
from erl_pipeline.comparison.opened_split import split_use
from erl_pipeline.config.run import RunConfig
from storage.errors import ConfigError, InputError
from tests.erl_pipeline.comparison.designs import write_arms, write_base
from tests.erl_pipeline.runs.small_runs import small
from tests.random_models import byte_tokenizer, random_llama

ERL, RLVR = small(), small(method="rlvr")


@pytest.mark.parametrize(
    ("name", "base", "overrides"),
    [
        ("erl", ERL, ()),
        ("erl-no-memory", ERL, ("method.memory=false",)),
        ("rlvr", ERL, ('method={"type": "rlvr"}',)),
        ("rlvr+distillation", ERL, ('method={"type": "rlvr"}', "distillation=true")),
        ("rlvr+distillation", RLVR, ("distillation=true",)),
        ("erl-no-memory-no-distillation", ERL, ("method.memory=false", "distillation=false")),
        ("rlvr+replay", RLVR, ("replay=true",)),
    ],
)
def test_a_name_says_method_and_parts(name: str, base: RunConfig, overrides: tuple[str, ...]) -> None:
    assert arm_of_method(name, base) == Arm(name, overrides)


@pytest.mark.parametrize("name", ["ppo", "erl-memory", "erl+", "erl no memory", "rlvr2"])
def test_other_names_are_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"arm {name.replace('+', '.')}: no such arm; allowed are a method"
    ):
        arm_of_method(name, ERL)


def test_a_part_that_the_method_does_not_have_is_told_with_the_arm() -> None:
    base = "configs/frozen_lake.yaml"
    with pytest.raises(ConfigError, match=r"(?s)arm rlvr-no-memory: .*method\.memory: unknown key"):
        load_arm(arm_of_method("rlvr-no-memory", ERL), base, [])


def test_arms_of_a_file_are_sets_of_overrides() -> None:
    arm = arm_of_settings("wide", {"rollouts.group_size": 16, "method": {"type": "rlvr"}})
    assert arm.overrides == ("rollouts.group_size=16", 'method={"type": "rlvr"}')
    assert Arm("rlvr+distillation").run_part == "rlvr-with-distillation"


def test_what_the_comparison_gives_to_every_run_cannot_be_set_by_an_arm() -> None:
    with pytest.raises(ConfigError, match=r"arm a: resources\.threads cannot be set here"):
        arm_of_settings("a", {"resources.threads": 4})
    with pytest.raises(ConfigError, match="arm 'a b': allowed are letters"):
        arm_of_settings("a b", {})


def write(folder: Path, text: str) -> Path:
    path = folder / "comparison.yaml"
    path.write_text(text)
    return path


def test_a_file_names_its_base_and_its_arms(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "comparison:\n  base: ../small.yaml\n  settings: {environment.test_boards: 8}\n  baseline: b\n"
        "  arms:\n    a:\n    b: {method.memory: off}\n",
    )
    assert read_comparison(path) == Given(
        base=str(tmp_path.parent / "small.yaml"),
        overrides=("name=comparison", "environment.test_boards=8"),
        arms=(Arm("a"), Arm("b", ("method.memory=false",))),
        baseline="b",
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("my_arms.yaml", "my-arms"),
        ("my arms (2).yaml", "my-arms-2"),
        ("_größe.yaml", "gr-e"),
        ("??.yaml", "comparison"),
    ],
)
def test_a_comparison_is_named_after_its_file(tmp_path: Path, file: str, name: str) -> None:
    path = tmp_path / file
    path.write_text("comparison: {base: small.yaml, arms: {a: {}}}")
    assert read_comparison(path).overrides == (f"name={name}",)


def test_a_name_that_leaves_no_room_for_those_of_runs_is_refused(tmp_path: Path) -> None:
    write_base(tmp_path)
    path = write_arms(tmp_path, bare={"method.memory": False}, whole={}).rename(tmp_path / f"{'a' * 45}.yaml")
    with pytest.raises(
        ConfigError, match=r"arm bare: .* 50 characters; allowed are 48\. Give the comparison"
    ):
        make_design(path, [], 2)


def test_a_run_configuration_is_a_base_without_arms(tmp_path: Path) -> None:
    path = write(tmp_path, "name: small\niterations: 2\n")
    assert read_comparison(path) == Given(str(path), (), (), None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("comparison: {base: a.yaml, arms: {a: {}}, seeds: 3}", "line 1: seeds: unknown key"),
        ("comparison: {arms: {a: {}}}", "base: missing"),
        ("comparison: {base: a.yaml, arms: {}}", "arms: there is none"),
        ("comparison: {base: a.yaml, arms: {a: {seed: 3}}}", "arm a: seed cannot be set here"),
        ("comparison: {base: a.yaml, arms: {a: 3}}", "arms"),
        (
            "comparison: {base: a.yaml, arms: {a: {}}}\nseed: 3",
            "seed: not allowed beside `comparison:`",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_comparison(write(tmp_path, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; ready comparisons are in configs/comparisons/"):
        read_comparison(tmp_path / "none.yaml")


READY = sorted((Path(__file__).parents[3] / "configs/comparisons").glob("*.yaml"))


def test_every_seed_goes_through_all_arms_before_the_next(tmp_path: Path) -> None:
    design = make_design(write_base(tmp_path), ["erl", "rlvr+distillation"], 2, overrides=["seed=5"])
    assert [run.config.name for run in design.runs] == [
        "small.erl.seed5",
        "small.rlvr-with-distillation.seed5",
        "small.erl.seed6",
        "small.rlvr-with-distillation.seed6",
    ]
    assert [run.config.seed for run in design.runs] == [5, 5, 6, 6]
    assert (design.baseline, design.iterations) == ("erl", 2)


def test_weights_are_kept_for_the_test_tasks(tmp_path: Path) -> None:
    base = write_base(tmp_path)
    of_file = {"retention.checkpoints": "2,every:6", "evaluation.every": 4}
    design = make_design(base, ["erl", "rlvr"], 2, overrides=[f"{k}={v}" for k, v in of_file.items()])
    assert {run.config.retention.checkpoints for run in design.runs} == {"2,every:4"}
    everything = make_design(base, ["erl", "rlvr"], 2, overrides=["retention.checkpoints=null"])
    assert {run.config.retention.checkpoints for run in everything.runs} == {None}


def test_arms_take_equal_steps_in_an_iteration(tmp_path: Path) -> None:
    design = make_design(write_base(tmp_path), ["erl", "rlvr"], 2)
    erl, rlvr = (run.config.update.epochs for run in design.runs[:2])
    # ERL: one reinforcement step and one supervised step.
    assert (erl, rlvr) == (1, 2)
    assert design.arms[1].overrides[-1] == "update.epochs=2"


def test_arms_of_the_file_win_over_settings_of_the_command(tmp_path: Path) -> None:
    write_base(tmp_path)
    path = write_arms(tmp_path, wide={"rollouts.group_size": 8}, plain={})
    design = make_design(path, [], 2, overrides=["rollouts.group_size=6"], threads=2)
    wide, plain = (run.config for run in design.runs[:2])
    assert (wide.rollouts.group_size, plain.rollouts.group_size) == (8, 6)
    assert (wide.resources.threads, wide.runner.type) == (2, "in_process")


@pytest.mark.parametrize(
    ("methods", "seeds", "problem"),
    [
        (["erl", "rlvr"], 1, "--seeds 1: allowed are 2 and more"),
        (["erl"], 2, "a comparison needs two arms or more"),
        (["erl", "erl"], 2, "erl is named twice"),
        ([], 2, "names no arms; say which with --methods"),
        (["erl", "ppo"], 2, "arm ppo: no such arm"),
        (["erl", "erl-no-sleep"], 2, r"(?s)arm erl-no-sleep: .*method\.sleep: unknown key"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, methods: list[str], seeds: int, problem: str
) -> None:
    with pytest.raises((InputError, ConfigError), match=problem):
        make_design(write_base(tmp_path), methods, seeds)


def test_without_a_test_split_nothing_is_reported(tmp_path: Path) -> None:
    base = write_base(tmp_path, test_boards=None)
    with pytest.raises(InputError, match=r"third split .* none; set environment\.test_boards: 256"):
        make_design(base, ["erl", "rlvr"], 2)


def test_arms_that_start_from_other_policies_or_see_other_tasks_are_refused(tmp_path: Path) -> None:
    write_base(tmp_path)
    deeper = write_arms(tmp_path, plain={}, deeper={"policy.layers": 3})
    with pytest.raises(ConfigError, match=r"arm deeper starts from another policy than plain.*layers"):
        make_design(deeper, [], 2)
    other = write_arms(tmp_path, plain={}, other={"environment.world_seed": 7})
    with pytest.raises(ConfigError, match=r"other is evaluated on other test tasks than plain.*world_seed"):
        make_design(other, [], 2)
    lenient = write_arms(tmp_path, plain={}, lenient={"rollouts.success_threshold": 0.5})
    with pytest.raises(ConfigError, match=r"lenient has rollouts.success_threshold: 0.5, .* and plain 1.0"):
        make_design(lenient, [], 2)


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_ready_comparisons_have_the_splits_of_their_published_results_or_new_boards(path: Path) -> None:
    settings = yaml.safe_load(path.read_text())["comparison"]["settings"]
    if "environment.test_share" not in settings:  # Tasks that are no boards.
        assert "environment.board_seed" in settings or settings["environment.twins"] == "any_split"


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_every_ready_comparison_is_valid(path: Path, tmp_path: Path) -> None:
    # Files of a language model name a checkpoint that `make smollm2` prepares.
    model = f"policy.model={_model(tmp_path)}"
    design = make_design(path, [], 2, overrides=[model] if path.stem in ("smollm2", "agent") else [])
    assert len(design.runs) == 2 * len(design.arms)


def _model(folder: Path) -> Path:
    tokenizer = byte_tokenizer()
    random_llama(len(tokenizer), positions=1024).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


RATES = {"optimizer.learning_rate": [1e-4, 3e-4, 1e-3]}


def test_each_arm_tries_as_many_combinations_in_an_order_of_the_seed(tmp_path: Path) -> None:
    write_base(tmp_path)
    searching = {"search": {**RATES, "rollouts.group_size": [4, 6]}}
    path = write_arms(
        tmp_path, {"budget": 3, "seeds": 2}, erl=searching, bare={"method.memory": False} | searching
    )
    design = make_design(path, [], 2)
    assert [trial.arm for trial in design.trials] == ["erl"] * 3 + ["bare"] * 3
    tried = [trial.settings for trial in design.trials[:3]]
    assert len(set(tried)) == 3
    assert {len(settings) for settings in tried} == {2}
    assert [run.seed for run in design.trials[0].runs] == [1000, 1001]
    assert [trial.settings for trial in make_design(path, [], 2).trials[:3]] == tried
    best = with_chosen(design, {trial.arm: trial for trial in design.trials})
    rates = {run.config.optimizer.learning_rate for run in best.runs if run.arm == "erl"}
    assert [f"optimizer.learning_rate={json.dumps(rate)}" for rate in rates] == [tried[-1][0]]
    # The same comparison has the same digest with other seeds, and another one with another search.
    assert split_use(design).settings_digest == split_use(make_design(path, [], 3)).settings_digest
    other = make_design(write_arms(tmp_path, {"budget": 2, "seeds": 2}, erl=searching, bare=searching), [], 2)
    assert split_use(other).settings_digest != split_use(design).settings_digest
    assert split_use(other).tasks == split_use(design).tasks


def test_the_same_boards_are_the_same_split_whatever_else_differs(tmp_path: Path) -> None:
    base = write_base(tmp_path)
    use = split_use(make_design(base, ["erl", "rlvr"], 2))
    longer = split_use(make_design(base, ["erl", "rlvr"], 2, overrides=["environment.max_steps=9"]))
    assert longer.test_tasks != use.test_tasks
    assert longer.tasks == use.tasks
    assert len(use.tasks) == len(use.shapes) == 6


def test_a_board_that_another_split_has_turned_is_the_same_task(tmp_path: Path) -> None:
    base = write_base(tmp_path)
    first, second = (
        split_use(make_design(base, ["erl", "rlvr"], 2, overrides=[f"environment.board_seed={seed}"]))
        for seed in (1, 2)
    )
    assert set(first.tasks).isdisjoint(second.tasks)
    assert (len(first.seen_in([second])), len(second.seen_in([first]))) == (1, 1)


def test_comparisons_from_one_base_have_runs_of_their_own(tmp_path: Path) -> None:
    write_base(tmp_path)
    path = write_arms(tmp_path, a={}, b={"method.memory": False}).rename(tmp_path / "two_arms.yaml")
    design = make_design(path, [], 2)
    assert (design.name, design.runs[0].config.name) == ("two-arms", "two-arms.a.seed0")
    assert make_design(path, [], 2, overrides=["name=other"]).name == "other"


@pytest.mark.parametrize(
    ("search", "other", "problem"),
    [
        (None, RATES, r"arm erl: search: there is no budget; add search: \{budget: N, seeds: S\}"),
        (
            {"budget": 3, "seeds": 1},
            {},
            "arm other: no search, but a fair comparison gives each arm the same",
        ),
        (
            {"budget": 3, "seeds": 1},
            {"optimizer.learning_rate": [1e-4]},
            "arm other: search: its values make 1 combinations, and each arm tries 3",
        ),
        (
            {"budget": 1, "seeds": 1},
            {"update.minibatches": [2]},
            "arm other with update.minibatches=2: search: 3 optimizer steps for 4 tasks instead of 2 for 4",
        ),
        ({"budget": 1, "seeds": 1}, {"evaluation.tasks": [9]}, "evaluation.tasks changes what is measured"),
        ({"budget": 1, "seeds": 1}, {"optimizer.learning_rate": 3}, "give each setting a list of values"),
        (
            {"budget": 1, "seeds": 1},
            {"policy.layers": [3]},
            r"other with policy.layers=3 starts from another",
        ),
        (
            {"budget": 1, "seeds": 1},
            {"rollouts.failed": ["zero"]},
            r"other with rollouts.failed=\"zero\" has rollouts.failed: zero, which says what counts as",
        ),
        ({"budget": 0, "seeds": 1}, RATES, "search.budget"),
    ],
)
def test_a_search_that_is_not_fair_is_refused(
    tmp_path: Path, search: dict[str, int] | None, other: dict[str, object], problem: str
) -> None:
    write_base(tmp_path)
    bare = {"method.memory": False, "search": other} if other else {"method.memory": False}
    path = write_arms(tmp_path, search, erl={"search": RATES}, other=bare)
    with pytest.raises(ConfigError, match=problem):
        make_design(path, [], 2)

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from erl_pipeline.comparison.design import make_design
from storage.errors import ConfigError, InputError
from tests.erl_pipeline.comparison.designs import write_arms, write_base
from tests.random_models import byte_tokenizer, random_llama

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


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_ready_comparisons_have_the_splits_of_their_published_results(path: Path) -> None:
    settings = yaml.safe_load(path.read_text())["comparison"]["settings"]
    assert settings["environment.twins"] == "any_split"


@pytest.mark.parametrize("path", READY, ids=lambda path: path.name)
def test_every_ready_comparison_is_valid(path: Path, tmp_path: Path) -> None:
    # The file of the language model names a checkpoint that `make smollm2` prepares.
    model = f"policy.model={_model(tmp_path)}"
    design = make_design(path, [], 2, overrides=[model] if path.stem == "smollm2" else [])
    assert len(design.runs) == 2 * len(design.arms)


def _model(folder: Path) -> Path:
    tokenizer = byte_tokenizer()
    random_llama(len(tokenizer), positions=1024).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

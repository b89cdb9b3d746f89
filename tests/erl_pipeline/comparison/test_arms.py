from __future__ import annotations

import pytest

from erl_pipeline.comparison.design import Arm, arm_of_method, arm_of_settings, load_arm
from erl_pipeline.config.run import RunConfig
from storage.errors import ConfigError
from tests.erl_pipeline.runs.small_runs import small

ERL, RLVR = small(), small(method="rlvr")


@pytest.mark.parametrize(
    ("name", "base", "overrides"),
    [
        ("erl", ERL, ()),
        ("erl-no-memory", ERL, ("method.memory=false",)),
        ("rlvr", ERL, ('method={"type": "rlvr"}',)),
        ("rlvr+distillation", ERL, ('method={"type": "rlvr"}', "method.distillation=true")),
        ("rlvr+distillation", RLVR, ("method.distillation=true",)),
        ("erl-no-memory-no-distillation", ERL, ("method.memory=false", "method.distillation=false")),
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

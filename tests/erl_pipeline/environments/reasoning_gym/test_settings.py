from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.environments.reasoning_gym.settings import DatasetConfig, ReasoningGymConfig


def test_datasets_are_named_one_by_one_in_a_list_or_with_weights() -> None:
    one = ReasoningGymConfig.model_validate({"tasks": "gcd"})
    several = ReasoningGymConfig.model_validate({"tasks": ["gcd", "lcm"]})
    weighted = ReasoningGymConfig.model_validate(
        {"tasks": {"gcd": None, "lcm": {"weight": 2, "config": {"max_value": 20}}}}
    )
    assert one.tasks == {"gcd": DatasetConfig()}
    assert list(several.tasks) == ["gcd", "lcm"]
    assert weighted.tasks == {
        "gcd": DatasetConfig(),
        "lcm": DatasetConfig(weight=2, config={"max_value": 20}),
    }


@pytest.mark.parametrize(
    ("tasks", "problem"),
    [
        ("game_of_life_halting", "game_of_life_halting of reasoning-gym is refused: "),
        ("word_sorting", "the answer with another one after it scores 1"),
        ("boxnet", "gives no right answer"),
        ("leg_countin", "has no dataset of this name; similar are leg_counting"),
        ("?", "there are ab, acre"),
        ([], "at least one name"),
        (["gcd", "gcd"], "each name is allowed once"),
        ({"gcd": {"weight": 0}}, "greater than 0"),
        ({"gcd": {"config": {"seed": 1}}}, "seed is set by environment.task_seed"),
        ({"gcd": {"config": {"size": 1}}}, "size is set by environment.training_tasks"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_the_reason(tasks: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem.replace("?", r"\?")):
        ReasoningGymConfig.model_validate({"tasks": tasks})

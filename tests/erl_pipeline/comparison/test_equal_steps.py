from __future__ import annotations

import pytest

from erl_pipeline.comparison.equal_steps import (
    PlannedSteps,
    _more_steps,
    iterations_for_the_same_tasks,
    planned_steps,
    with_equal_steps,
)
from erl_pipeline.config.loading import change_config
from storage.errors import ConfigError
from tests.erl_pipeline.runs.small_runs import small

ERL = small(fine_tune={"steps": 3})
RLVR = change_config(ERL, ["method=rlvr"])
TASKS = ERL.rollouts.tasks_per_iteration


def test_an_iteration_has_one_update_and_the_supervised_steps_of_its_plan() -> None:
    assert planned_steps(ERL) == PlannedSteps(TASKS, updates=1, per_pass=1, passes=1, supervised=3)
    assert planned_steps(ERL).total == 4
    assert planned_steps(RLVR).total == 1


def test_an_arm_without_a_supervised_stage_passes_over_its_rollouts_more_often() -> None:
    arms = {"erl": ERL, "rlvr": RLVR, "control": change_config(RLVR, ["distillation=on"])}
    assert with_equal_steps(arms, TASKS, 2) == {"erl": (), "rlvr": ("update.epochs=4",), "control": ()}


def test_an_arm_that_never_changes_the_weights_is_left_as_it_is() -> None:
    arms = {"erl": ERL, "evolved": small(method="prompt_evolution")}
    assert with_equal_steps(arms, TASKS, 2) == {"erl": (), "evolved": ()}


def test_more_than_four_passes_are_refused_and_fresh_rollouts_are_named() -> None:
    # 13 steps for 16 tasks are .8125 for each; 4 for 5 tasks are .8, and 3 for 4 tasks are .75.
    sixteen = ["rollouts.tasks_per_iteration=16", "environment.training_boards=64"]
    erl = change_config(small(fine_tune={"steps": 12}), sixteen)
    rlvr = change_config(erl, ["method=rlvr"])
    with pytest.raises(ConfigError) as refused:
        with_equal_steps({"erl": erl, "rlvr": rlvr}, 16, 60)
    assert str(refused.value).startswith(
        "arm rlvr: 13 passes over the same rollouts would be needed for the 13 optimizer steps that another "
        "arm takes for 16 tasks; allowed are 4"
    )
    # 60 * 16 / 5 iterations draw as many tasks.
    assert str(refused.value).endswith(
        "set rollouts.tasks_per_iteration: 5 and update.epochs: 4. It then takes 4 steps for 5 tasks, and is "
        "trained for 192 iterations instead of 60"
    )


def test_an_arm_that_makes_more_passes_by_its_own_settings_is_refused() -> None:
    many = change_config(RLVR, ["update.epochs=8"])
    # 8 steps for 2 tasks are 4 for one.
    with pytest.raises(
        ConfigError,
        match=r"(?s)arm rlvr: update\.epochs: 8 passes .* allowed are 4.*"
        r"rollouts\.tasks_per_iteration: 1 and update\.epochs: 4.* 60 iterations instead of 30",
    ):
        with_equal_steps({"erl": ERL, "rlvr": many}, TASKS, 30)


def test_an_arm_with_its_own_number_of_tasks_gets_its_steps_from_more_iterations() -> None:
    fresh = change_config(RLVR, ["rollouts.tasks_per_iteration=1"])  # ERL has 2
    assert with_equal_steps({"erl": ERL, "rlvr": fresh}, TASKS, 60) == {"erl": (), "rlvr": ()}
    assert iterations_for_the_same_tasks(60, TASKS, fresh) == 120
    assert iterations_for_the_same_tasks(60, TASKS, ERL) == 60


def test_minibatches_that_do_not_divide_the_steps_are_refused() -> None:
    uneven = change_config(RLVR, ["update.minibatches=3"])
    with pytest.raises(ConfigError, match=r"arm rlvr: with update\.minibatches: 3 no number of passes"):
        with_equal_steps({"erl": ERL, "rlvr": uneven}, TASKS, 2)


def test_an_arm_with_a_supervised_stage_alone_takes_more_steps_there() -> None:
    alone = PlannedSteps(TASKS, updates=0, per_pass=1, passes=1, supervised=3)
    assert _more_steps("distiller", ERL, alone, 4, iterations=2) == "fine_tune.steps=4"

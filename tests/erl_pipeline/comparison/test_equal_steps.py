from __future__ import annotations

import pytest

from erl_pipeline.comparison.equal_steps import _more_steps, levelled, planned_steps
from erl_pipeline.config.loading.load import change_config
from storage.errors import ConfigError
from tests.erl_pipeline.runs.small_runs import small

ERL = small(fine_tune={"steps": 3})
RLVR = change_config(ERL, ["method=rlvr"])


def test_an_iteration_has_one_update_and_the_supervised_steps_of_its_plan() -> None:
    assert planned_steps(ERL) == (1, 3)
    assert planned_steps(RLVR) == (1, 0)


def test_an_arm_without_a_supervised_stage_passes_over_its_rollouts_more_often() -> None:
    overrides = levelled(
        {"erl": ERL, "rlvr": RLVR, "control": change_config(RLVR, ["method.distillation=on"])}
    )
    assert overrides == {"erl": (), "rlvr": ("update.epochs=4",), "control": ()}


def test_minibatches_that_do_not_divide_the_steps_are_refused() -> None:
    uneven = change_config(RLVR, ["update.minibatches=3"])
    with pytest.raises(ConfigError, match=r"arm rlvr: with update\.minibatches: 3 no number of passes"):
        levelled({"erl": ERL, "rlvr": uneven})


def test_an_arm_with_a_supervised_stage_alone_takes_more_steps_there() -> None:
    assert _more_steps("distiller", ERL, updates=0, supervised=3, most=4) == "fine_tune.steps=4"

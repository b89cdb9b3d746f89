from __future__ import annotations

import pytest

from erl_pipeline.config.differences import changed_settings, settings_differences
from erl_pipeline.config.load import change_config
from erl_pipeline.config.run import RunConfig
from storage.errors import ConfigError

OLD = RunConfig.model_validate(
    {"name": "a", "iterations": 2, "environment": {"type": "frozen_lake"}, "policy": {"type": "tiny"}}
)


def test_changed_settings_win_and_all_others_stay() -> None:
    new = change_config(OLD, ["update.epochs=3", "name=b", "iterations=9"])
    assert new.update.epochs == 3
    assert new.model_copy(update={"update": OLD.update, "name": "a", "iterations": 2}) == OLD
    assert changed_settings(OLD, new) == ["update.epochs: 1 -> 3"]


def test_a_group_that_is_switched_off_or_on_is_one_line() -> None:
    off = change_config(OLD, ["memory=off", "reflection=off"])
    assert changed_settings(OLD, off) == ["reflection: true -> false", "memory: on -> off"]
    assert changed_settings(off, OLD) == ["reflection: false -> true", "memory: off -> on"]


def test_settings_that_only_one_has_are_named() -> None:
    assert settings_differences({"a": 1}, {"a": 1, "b": {"c": 2}}) == ["b.c: absent -> 2"]


def test_a_wrong_change_names_the_run_and_the_key() -> None:
    with pytest.raises(
        ConfigError, match=r"run a: 1 problem\n  --set: update.epoch: unknown key; did you mean"
    ):
        change_config(OLD, ["update.epoch=3"])

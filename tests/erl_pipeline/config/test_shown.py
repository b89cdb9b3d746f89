from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field

from erl_pipeline.config.base import Settings
from erl_pipeline.config.loading import change_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.shown import (
    DescribedSetting,
    changed_settings,
    describe_settings,
    settings_differences,
)
from storage.errors import ConfigError


class Inner(Settings):
    size: tuple[int, int] = (1, 2)
    """Least and most."""


class Outer(Settings):
    mode: Literal["a", "b"]
    """Which
    way."""
    inner: Inner | None = None
    names: tuple[str, ...] = Field(default=(), max_length=3)


def test_settings_are_told_with_those_of_their_groups() -> None:
    assert list(describe_settings(Outer)) == [
        DescribedSetting("mode", "a | b", None, True, "Which way."),
        DescribedSetting("inner", "settings | null", None, False, ""),
        DescribedSetting("inner.size", "[whole number, whole number]", [1, 2], False, "Least and most."),
        DescribedSetting("names", "[text, ...]", [], False, ""),
    ]


OLD = RunConfig.model_validate(
    {"name": "a", "iterations": 2, "environment": {"type": "frozen_lake"}, "policy": {"type": "tiny"}}
)


def test_changed_settings_win_and_all_others_stay() -> None:
    new = change_config(OLD, ["update.epochs=3", "name=b", "iterations=9"])
    assert new.update.epochs == 3
    assert new.model_copy(update={"update": OLD.update, "name": "a", "iterations": 2}) == OLD
    assert changed_settings(OLD, new) == ["update.epochs: 1 -> 3"]


def test_a_group_that_is_switched_off_or_on_is_one_line() -> None:
    off = change_config(OLD, ["method.memory=off", "method.max_revisions=2"])
    assert changed_settings(OLD, off) == ["method.max_revisions: 1 -> 2", "method.memory: on -> off"]
    assert changed_settings(off, OLD) == ["method.max_revisions: 2 -> 1", "method.memory: off -> on"]


def test_a_group_of_another_type_is_one_line() -> None:
    assert changed_settings(OLD, change_config(OLD, ["method=rlvr"])) == ['method.type: "erl" -> "rlvr"']


def test_settings_that_only_one_has_are_named() -> None:
    assert settings_differences({"a": 1}, {"a": 1, "b": {"c": 2}}) == ["b.c: absent -> 2"]


def test_a_wrong_change_names_the_run_and_the_key() -> None:
    with pytest.raises(
        ConfigError, match=r"run a: 1 problem\n  --set: update.epoch: unknown key; did you mean"
    ):
        change_config(OLD, ["update.epoch=3"])

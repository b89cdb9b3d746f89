"""Distillation as a group beside the method: what each method does by itself, and what is refused."""

from __future__ import annotations

import pytest

from storage.errors import ConfigError
from tests.erl_pipeline.runs.planned_runs import config


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        ((), "separate"),
        (("method=rlvr",), "off"),
        (("method=complementary",), "off"),
        (("distillation=off",), "off"),
        (("distillation.window=2",), "separate"),
        (("method=rlvr", "distillation=on"), "separate"),
        (("method=rlvr", "distillation=joint"), "joint"),
        (("method=rlvr", "distillation=on", "distillation.window=2"), "separate"),
        (("distillation=joint", "distillation.window=2"), "joint"),
        (("distillation={form: off, window: 2}",), "off"),
        # What was chosen stays when the method changes; what was not follows the method.
        (("distillation=joint", "method=rlvr"), "joint"),
    ],
)
def test_the_form_is_what_is_set_or_what_the_method_does_by_itself(
    settings: tuple[str, ...], form: str
) -> None:
    assert config(*settings).distillation_form == form


def test_rows_of_a_joint_update_have_a_role_of_their_own() -> None:
    assert config("distillation=joint").roles[-1] == "distilled"
    assert config("distillation=joint", "objective.roles={distilled: {weight: 0.5}}").objective.roles
    with pytest.raises(ConfigError, match=r"objective.roles: distilled is no role of this method"):
        config("objective.roles={distilled: {weight: 0.5}}")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["method=complementary", "distillation=on"],
            "distillation: method complementary cannot be combined",
        ),
        (["method=rlvr", "distillation={form: separate, chain: on}"], "method rlvr has no text that led to"),
        (["distillation={form: joint, chain: on}"], "would train reflections and second attempts twice"),
        (["method=rlvr", "distillation.window=2"], "method rlvr distils nothing by itself"),
        (["distillation=jointly"], "distillation.form: 'jointly'; allowed: separate, joint, off"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(settings: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(*settings)

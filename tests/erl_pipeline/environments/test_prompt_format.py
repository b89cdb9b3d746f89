from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from erl_pipeline.config.prompts import PromptTemplates
from erl_pipeline.environments.prompt_format import AttemptReport, ChatPrompts
from erl_pipeline.episodes.attempt import PlainPrompts

PROMPTS = ChatPrompts(PromptTemplates())
REPORT = AttemptReport(
    observation="@ &", trace="Step 1: action a", feedback="The attempt failed.", reward=0.0
)


def test_the_first_attempt_sees_instructions_and_observation_only() -> None:
    assert PROMPTS.attempt("Act.", "@ &", []) == [
        {"role": "system", "content": "Act."},
        {"role": "user", "content": "@ &"},
    ]
    assert PROMPTS.attempt("Act.", "@ &", []) == PlainPrompts().attempt("Act.", "@ &", [])
    assert PROMPTS.attempt("", "@ &", []) == [{"role": "user", "content": "@ &"}]


def test_the_second_attempt_differs_in_the_notes_only() -> None:
    system, user = PROMPTS.attempt("Act.", "@ &", ["b moves right"])
    assert system["content"] == "Act.\n\nNotes from earlier attempts (they may be wrong):\n- b moves right"
    assert user == PROMPTS.attempt("Act.", "@ &", [])[1]


def test_a_retry_without_reflection_sees_the_attempt_and_its_feedback() -> None:
    system, user = PROMPTS.retry("Act.", REPORT, [])
    assert system["content"].endswith("Step 1: action a\nThe attempt failed.")
    assert user["content"] == "@ &"


def test_a_retry_after_a_reflection_sees_its_notes_too() -> None:
    system, _ = PROMPTS.retry("Act.", REPORT, ["b moves right"])
    assert system["content"].endswith(
        "Step 1: action a\nThe attempt failed.\n\n"
        "Notes from earlier attempts (they may be wrong):\n- b moves right"
    )


def test_a_reflection_sees_trace_feedback_reward_and_memory() -> None:
    system, user = PROMPTS.reflection("Act.", REPORT, ["b moves right", "c is up"])
    assert system["content"].startswith("You look back on an attempt at a task and write notes")
    assert user["content"] == (
        "The task was told as follows.\nAct.\n\n"
        "Notes that helped with similar tasks (they may be wrong here):\n- b moves right\n- c is up\n\n"
        "The attempt:\nStep 1: action a\n\n"
        "Reward: 0\nFeedback: The attempt failed."
    )
    assert "Notes" not in PROMPTS.reflection("Act.", REPORT, [])[1]["content"]


def test_prompts_are_templates_in_settings() -> None:
    templates = PromptTemplates(second_attempt="{{ instructions }} Heed: {{ notes | join('; ') }}")
    system, _ = ChatPrompts(templates).attempt("Act.", "@ &", ["b moves right", "c is up"])
    assert system["content"] == "Act. Heed: b moves right; c is up"


def test_what_stands_in_an_environments_text_is_no_template() -> None:
    report = AttemptReport("{{ x }}", "{% if %}", "{{ feedback }}", 0.5)
    _, user = PROMPTS.reflection("{{ y }}", report, ["{{ note }}"])
    for part in ("{{ y }}", "{% if %}", "Feedback: {{ feedback }}", "- {{ note }}", "Reward: 0.5"):
        assert part in user["content"]


@pytest.mark.parametrize(
    ("key", "template", "message"),
    [
        ("retry", "{{ trase }}", "retry: the template uses the unknown variable 'trase'; known variables: "),
        ("second_attempt", "{{ feedback }}", "known variables: instructions, notes, observation"),
        ("reflection_system", "{{ instructions }}", "known variables: none"),
        ("reflection", "{{ trace", "reflection: the template cannot be read: "),
        ("reflection", "{{ trace | shout }}", "reflection: the template cannot be read: No filter named"),
        ("reflection", "{{ reward.size }}", "reflection: the template cannot be rendered: "),
        ("reflection", "{{ trace.__class__.mro() }}", "reflection: the template cannot be rendered: "),
    ],
)
def test_a_broken_template_is_refused_by_name(key: str, template: str, message: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(message)):
        PromptTemplates.model_validate({key: template})


def test_an_answer_without_a_letter_is_no_reflection() -> None:
    assert PROMPTS.read_reflection("  Use b. \n") == "Use b."
    assert PROMPTS.read_reflection(" ... ") is None
    assert PROMPTS.read_reflection("<think>\nWhat now?\n</think>\n\nUse b.") == "Use b."
    assert PROMPTS.read_reflection("<think>\nWhat now? Per") is None  # cut off
    assert PROMPTS.read_reflection("") is None

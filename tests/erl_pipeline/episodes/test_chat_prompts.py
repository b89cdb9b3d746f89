from __future__ import annotations

from erl_pipeline.environments.base import AttemptReport
from erl_pipeline.episodes.chat_prompts import ChatPrompts

REPORT = AttemptReport(
    observation="@ &", trace="Step 1: action a", feedback="The attempt failed.", reward=0.0
)


def test_the_first_attempt_sees_instructions_and_observation_only() -> None:
    assert ChatPrompts().attempt("Act.", "@ &", []) == [
        {"role": "system", "content": "Act."},
        {"role": "user", "content": "@ &"},
    ]


def test_the_second_attempt_differs_in_the_notes_only() -> None:
    system, user = ChatPrompts().attempt("Act.", "@ &", ["b moves right"])
    assert system["content"] == "Act.\n\nNotes from earlier attempts (they may be wrong):\n- b moves right"
    assert user == ChatPrompts().attempt("Act.", "@ &", [])[1]


def test_a_retry_without_reflection_sees_the_attempt_and_its_feedback() -> None:
    system, user = ChatPrompts().retry("Act.", REPORT)
    assert system["content"].endswith("Step 1: action a\nThe attempt failed.")
    assert user["content"] == "@ &"


def test_a_reflection_sees_trace_feedback_reward_and_memory() -> None:
    user = ChatPrompts().reflection("Act.", REPORT, ["b moves right"])[1]["content"]
    for part in ("Act.", "Step 1: action a", "Reward: 0", "Feedback: The attempt failed.", "- b moves right"):
        assert part in user
    assert "Notes" not in ChatPrompts().reflection("Act.", REPORT, [])[1]["content"]


def test_an_answer_without_a_letter_is_no_reflection() -> None:
    prompts = ChatPrompts()
    assert prompts.read_reflection("  Use b. \n") == "Use b."
    assert prompts.read_reflection(" ... ") is None
    assert prompts.read_reflection("") is None

from __future__ import annotations

import asyncio

from erl_pipeline.environments.interface import Task, Transition
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.reasoning_gym import ENVIRONMENT
from erl_pipeline.environments.reasoning_gym.settings import ReasoningGymConfig

ENTRY = {"question": "How many legs have 3 cows?\n", "answer": "12", "metadata": {"total_legs": 12}}
TASK = Task(
    "t",
    "reasoning_gym-leg_counting",
    "reasoning_gym",
    {"dataset": "leg_counting", "config": {}, "entry": ENTRY},
)


def attempt(text: str, **settings: object) -> tuple[str, Transition, str, str]:
    """Observation, transition, feedback and trace of one attempt."""

    async def play() -> tuple[str, Transition, str, str]:
        chosen = ReasoningGymConfig.model_validate({"tasks": "leg_counting", **settings})
        environment = ENVIRONMENT.open(chosen, TASK)
        assert (environment.instructions, environment.tools) == ("Answer the question.", ())
        observation = await environment.reset()
        end = await environment.step(AssistantTurn(text))
        feedback, trace = await environment.feedback(), environment.trace()
        await environment.close()
        return observation, end, feedback, trace

    return asyncio.run(play())


def test_a_right_answer() -> None:
    observation, end, feedback, trace = attempt("Four each: <answer>12</answer>")
    assert observation == (
        "How many legs have 3 cows?\nGive the final answer between <answer> and </answer>."
    )
    assert (end.reward, end.done, list(end.messages)) == (1.0, True, [])
    assert end.metrics == {"score": 1.0, "answers_found": 1.0, "unscored_answers": 0.0}
    assert feedback == "The answer is correct."
    assert trace == "Question: How many legs have 3 cows?\nAnswer: Four each: <answer>12</answer>"


def test_a_partly_right_answer_is_rewarded_only_by_score() -> None:
    _, exact, feedback, _ = attempt("12 legs", answer_format="whole")
    _, scored, _, _ = attempt("12 legs", answer_format="whole", reward="score")
    # "12" is two of the seven characters.
    assert (exact.reward, scored.reward) == (0.0, 2 / 7)
    assert feedback == (
        "The answer 12 legs is not correct. The answer should be a number and nothing else. "
        "Its score is 0.29; a correct answer has 1."
    )


def test_a_text_without_an_answer_and_one_of_a_megabyte() -> None:
    _, end, feedback, _ = attempt("12")
    assert (end.reward, end.metrics["answers_found"]) == (0.0, 0.0)
    assert feedback == "No answer was found: the text has nothing between <answer> and </answer>."
    _, end, feedback, _ = attempt("9" * 1_000_000, answer_format="whole")
    assert (end.reward, end.metrics["unscored_answers"]) == (0.0, 1.0)
    assert feedback == (
        f"The answer {'9' * 200}... is not correct. It was not scored: it is longer than 10000 characters."
    )


def test_the_gold_answer_is_written_in_the_form_that_is_asked_for() -> None:
    def gold(answer: str, answer_format: str) -> str | None:
        settings = ReasoningGymConfig.model_validate(
            {"tasks": "leg_counting", "answer_format": answer_format}
        )
        entry = {**ENTRY, "answer": answer}
        task = Task("t", "type", "reasoning_gym", {**TASK.payload, "entry": entry})
        assert ENVIRONMENT.gold_answers is not None
        found = ENVIRONMENT.gold_answers.right(settings, task)
        assert found is None or isinstance(found, str)
        return found

    assert gold("12", "tag") == "<answer>12</answer>"
    assert gold("12", "boxed") == r"\boxed{12}"
    assert gold("1 2\n3 4", "whole") == "1 2\n3 4"
    # The last line of a grid is not the whole grid.
    assert gold("1 2\n3 4", "last_line") is None

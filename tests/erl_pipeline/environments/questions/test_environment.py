"""."""

from __future__ import annotations

import asyncio
import time

import pytest

from erl_pipeline.environments.interface import ScorerFailed, Task
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.questions import ENVIRONMENT
from erl_pipeline.environments.questions.environment import FORMATS, gold_answer, in_box, in_tag, on_last_line
from erl_pipeline.environments.questions.settings import AnswerFormat, QuestionsConfig
from erl_pipeline.environments.scorers import Scorer

TASK = Task("t", "questions", "questions", {"question": "How many clips?", "answer": "72"})
NUMERIC = QuestionsConfig(scorer="numeric", instructions="Think first.")


def play(config: QuestionsConfig, said: str, task: Task = TASK) -> tuple[str, float, dict[str, float], str]:
    """Play one attempt; returns the first prompt, the reward, the metrics and the feedback."""

    async def attempt() -> tuple[str, float, dict[str, float], str]:
        environment = ENVIRONMENT.open(config, task)
        told = f"{environment.instructions}\n{await environment.reset()}"
        transition = await environment.step(AssistantTurn(said))
        assert transition.done
        assert environment.trace() == f"The question was: {task.payload['question']}\n\nThe reply was: {said}"
        feedback = await environment.feedback()
        await environment.close()
        return told, transition.reward, dict(transition.metrics), feedback

    return asyncio.run(attempt())


def test_a_question_takes_one_turn() -> None:
    told, reward, metrics, feedback = play(NUMERIC, r"48 + 24 is \boxed{72}")
    assert told == "Think first. Write the final answer as \\boxed{answer}.\nHow many clips?"
    assert (reward, metrics) == (1.0, {"answered": 1.0})
    assert feedback == "Your answer was: 72\nIt is right."


@pytest.mark.parametrize(
    ("said", "feedback"),
    [
        (r"\boxed{71}", "Your answer was: 71\nIt is wrong."),
        (
            r"\boxed{many}",
            "Your answer was: many\nIt is wrong. It is not a number, or holds more than one.",
        ),
        ("72", "No answer was found: the last \\boxed{...} counts, and there was none with anything in it."),
    ],
)
def test_feedback_is_true_and_never_gives_the_answer_away(said: str, feedback: str) -> None:
    assert play(NUMERIC, said)[1:] == (0.0, {"answered": float("boxed" in said)}, feedback)


def test_the_score_of_an_answer_that_is_partly_right_is_told() -> None:
    config = QuestionsConfig(scorer="f1", answer_format="tag")
    task = Task("t", "questions", "questions", {"question": "Which house?", "answer": "old red house"})
    _, reward, _, feedback = play(config, "<answer>red house here</answer>", task)
    assert reward == pytest.approx(2 / 3)
    assert feedback == "Your answer was: red house here\nIts score is 0.667, where 1 is right."


def test_a_long_answer_is_repeated_in_part() -> None:
    feedback = play(QuestionsConfig(answer_format="whole"), "7" * 1_000_000)[3]
    assert len(feedback) < 400


def test_another_attempt_begins_anew() -> None:
    async def attempts() -> str:
        environment = ENVIRONMENT.open(NUMERIC, TASK)
        await environment.reset()
        await environment.step(AssistantTurn(r"\boxed{72}"))
        await environment.reset()
        with pytest.raises(RuntimeError, match="no feedback yet"):
            await environment.feedback()
        return environment.trace()

    assert asyncio.run(attempts()) == "The question was: How many clips?\n\nThe reply was: "


def test_a_task_that_the_scorer_cannot_score_fails() -> None:
    """Such as a task from a file that was read with another scorer."""
    task = Task("t", "questions", "questions", {"question": "Where?", "answer": "Paris"})
    with pytest.raises(ScorerFailed, match="ValueError: answer: 'Paris'; allowed with scorer: numeric"):
        play(NUMERIC, r"\boxed{72}", task)


@pytest.mark.parametrize(
    ("answer_format", "reply"),
    [("boxed", r"\boxed{72}"), ("tag", "<answer>72</answer>"), ("last_line", "72"), ("whole", "72")],
)
def test_a_reply_with_the_right_answer_scores_1(answer_format: AnswerFormat, reply: str) -> None:
    config = QuestionsConfig(scorer="numeric", answer_format=answer_format)
    assert gold_answer(config, TASK) == reply
    assert play(config, reply)[1] == 1.0


def test_a_scorer_that_knows_no_right_answer_has_no_gold_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    free = Scorer(lambda answer, payload: 0.0, gold_answer=lambda payload: None)
    monkeypatch.setattr("erl_pipeline.environments.questions.environment.scorer_named", lambda name: free)
    assert gold_answer(NUMERIC, TASK) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{72}.", "72"),
        (r"\boxed{1} no, \boxed{ 2 }", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{4} and \boxed{5", "4"),
        (r"\boxed {6}", "6"),
        (r"\boxed{}", None),
        (r"\boxed{7", None),
        ("72", None),
    ],
)
def test_the_last_closed_box_counts(text: str, answer: str | None) -> None:
    assert in_box(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>a</answer> or <answer>\nb\n</answer>", "b"),
        ("<answer>a</answer> or <answer>b", "a"),
        ("</answer><answer>", None),
        ("<answer> </answer>", None),
    ],
)
def test_the_last_closed_tag_counts(text: str, answer: str | None) -> None:
    assert in_tag(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("48 + 24 = 72\n72\n\n", "72"),
        ("#### 72", "72"),
        ("**Answer:** 72", "72"),
        ("The final answer is: 72.", "72."),
        ("Answers differ", "Answers differ"),
        (" \n ", None),
    ],
)
def test_the_last_line_counts_without_its_label(text: str, answer: str | None) -> None:
    assert on_last_line(text) == answer


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("piece", ["{", "\\boxed{", "<answer>", "</answer>", "\n", "*", " ", "answer", "a"])
def test_a_megabyte_takes_no_time(name: AnswerFormat, piece: str) -> None:
    began = time.thread_time()
    FORMATS[name].find(piece * (1_000_000 // len(piece)))
    assert time.thread_time() - began < 3.0

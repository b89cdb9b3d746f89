"""The examination of a policy after its warm start: its most probable answers to questions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from erl_pipeline.environments.demonstrations import WarmStartQuestion
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.policies.checkpoints import MODEL
from erl_pipeline.trainers.interface import Trainer

EXAMINATION = "examination.jsonl"
"""Each question with the policy's answer and its scores."""

_AT_ONCE = 48  # questions that are answered together


def examine(
    call: StageCall[Any], trainer: Trainer, questions: Sequence[WarmStartQuestion], *, most_tokens: int
) -> dict[str, float]:
    """The mean of each score; the answers are written into the artifact.

    Args:
        most_tokens: largest number of tokens in an answer; a longer one is cut off.
    """
    from erl_pipeline.engines.embedded.engine import TransformersEngine
    from erl_pipeline.engines.interface import GenerationRequest
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.policies.pretrained import load_policy

    policy = trainer.trained_policy() or load_policy(call.folder / MODEL, dtype=call.settings.weights.dtype)
    chat = ChatTokenizer(policy.tokenizer)
    engine = TransformersEngine(policy.model, policy.eos_token_ids, _AT_ONCE, stop=call.resources.stop)
    call.progress.begin(len(questions), "questions")
    scores: defaultdict[str, list[float]] = defaultdict(list)
    with (call.folder / EXAMINATION).open("w", encoding="utf-8") as file:
        for first in range(0, len(questions), _AT_ONCE):
            asked = questions[first : first + _AT_ONCE]
            answers = engine.generate(
                [
                    GenerationRequest(
                        chat.prompt(question.prompt), most_tokens, 0.0, 0, conversation=f"{first + number}"
                    )
                    for number, question in enumerate(asked)
                ]
            )
            for question, answer in zip(asked, answers, strict=True):
                text = chat.text(answer.token_ids)
                found = question.scores(text)
                file.write(_line(question, text, found))
                for name, score in found.items():
                    scores[name].append(score)
            call.progress.advance(len(asked), **_means(scores))
    return _means(scores)


def _means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: sum(values) / len(values) for name, values in scores.items()}


def _line(question: WarmStartQuestion, answer: str, scores: Mapping[str, float]) -> str:
    return (
        json.dumps(
            {"messages": list(question.prompt), "answer": answer, "scores": dict(scores)}, ensure_ascii=False
        )
        + "\n"
    )

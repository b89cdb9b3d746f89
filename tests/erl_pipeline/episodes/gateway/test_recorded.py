"""Recorded answers, given once more."""

from __future__ import annotations

import asyncio
import re

import pytest

from erl_pipeline.engines.interface import GenerationRequest
from erl_pipeline.episodes.gateway.recorded import RecordedPolicy, recorded_answers
from erl_pipeline.episodes.play import PlayedEpisodes
from storage.errors import NotRepeated
from tests.erl_pipeline.episodes.gateway import agents
from tests.erl_pipeline.episodes.gateway.playing import TOKENIZER, played, text


def recorded(episodes: PlayedEpisodes) -> RecordedPolicy:
    rows = (*episodes.rows, *episodes.further)
    return RecordedPolicy(recorded_answers(rows, episodes.calls), text)


def ask(policy: RecordedPolicy, prompt: str) -> str:
    ids = tuple(TOKENIZER(prompt, add_special_tokens=False)["input_ids"])
    return text(asyncio.run(policy.ask(GenerationRequest(ids, 8, 1.0, 0, "c", "policy"))).token_ids)


ASKED = "<|im_start|>user\nhow many?<|im_end|>\n<|im_start|>assistant\n"


def test_choices_are_given_again_in_their_order() -> None:
    said = iter("756")
    episodes = played(agents.asks_for_choices, lambda prompt: next(said))
    policy = recorded(episodes)
    assert policy.left == 3
    assert [ask(policy, ASKED)[0] for _ in range(3)] == list("756")
    assert policy.left == 0
    with pytest.raises(NotRepeated, match="once more"):
        ask(policy, ASKED)


@pytest.mark.parametrize(
    ("prompt", "difference"),
    [
        (
            ASKED.replace("many", "much"),
            "after '<|im_start|>user\\nhow m' it said 'any?<|im_end|>\\n<|im_start|>assistant\\n', "
            "and now it says 'uch?<|im_end|>\\n<|im_start|>assistant\\n'",
        ),
        (ASKED[:-1], "it said '\\n', and now it says nothing more"),
    ],
)
def test_what_differs_first_is_shown(prompt: str, difference: str) -> None:
    policy = recorded(played(agents.streams, lambda prompt: "7"))
    with pytest.raises(NotRepeated, match=re.escape(difference)):
        ask(policy, prompt)

from __future__ import annotations

import random

import pytest

from erl_pipeline.config.environment import FrozenLakeConfig
from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.frozen_lake.generation import generate_boards
from erl_pipeline.environments.frozen_lake.steps import Action, Step
from erl_pipeline.environments.frozen_lake.tiny.demonstrations import (
    Demonstration,
    demonstrate,
    seen_moves,
    slots_text,
)
from erl_pipeline.policies.tiny.architecture import context_length
from erl_pipeline.policies.tiny.tokenizer import build_tokenizer

ENVIRONMENT = FrozenLakeConfig()


def many(
    count: int, environment: FrozenLakeConfig = ENVIRONMENT, **settings: float
) -> list[list[Demonstration]]:
    boards = generate_boards(environment, "training", 100)
    stream = random.Random(0)
    return [demonstrate(stream, environment, ColdStartConfig(**settings), boards) for _ in range(count)]  # type: ignore[arg-type]


def test_a_conversation_is_what_the_chat_template_gives() -> None:
    shown = Demonstration()
    shown.open([{"role": "user", "content": "@ & notes ? ? ? ?"}])
    shown.say("up a")
    shown.hear("bump c0")
    shown.say("right b")
    tokenizer = build_tokenizer(ENVIRONMENT, 128)
    messages = [
        {"role": "user", "content": "@ & notes ? ? ? ?"},
        {"role": "assistant", "content": "up a"},
        {"role": "user", "content": "bump c0"},
        {"role": "assistant", "content": "right b"},
    ]
    assert " ".join(shown.words) == tokenizer.apply_chat_template(messages, tokenize=False)


def test_only_the_words_of_the_policy_are_trained() -> None:
    for demonstrations in many(50):
        for shown in demonstrations:
            spoken = " ".join(
                word for word, trained in zip(shown.words, shown.trained, strict=True) if trained
            )
            turns = [turn.split("<end>")[0] for turn in " ".join(shown.words).split("<assistant> ")[1:]]
            assert spoken == " ".join(f"{turn.strip()} <end>" for turn in turns)


def test_failed_attempts_are_followed_by_a_reflection_and_all_fits_the_context() -> None:
    room = context_length(ENVIRONMENT)
    kinds = set()
    for demonstrations in many(200):
        kinds.add(len(demonstrations))
        for reflection in demonstrations[1:]:
            # <bos> <user>, 16 cells, "trace", 6 steps of 4 words, then how the attempt ended.
            assert reflection.words[2 + 16 + 1 + 24] in {"fell", "lost"}
        assert all(len(shown.words) <= room for shown in demonstrations)
    assert kinds == {1, 2}


@pytest.mark.parametrize(("share", "expected"), [(1.0, {"? ? ? ?"}), (0.0, set())])
def test_blank_notes_come_as_often_as_asked(share: float, expected: set[str]) -> None:
    slots = {" ".join(shown[0].words[19:23]) for shown in many(50, blank_notes=share)}
    assert slots & {"? ? ? ?"} == expected


def test_plans_are_demonstrated_in_one_turn() -> None:
    environment = FrozenLakeConfig(action_mode="plan")
    for demonstrations in many(50, environment):
        assert demonstrations[0].words.count("<assistant>") == 1


def test_slots_name_the_word_of_each_direction() -> None:
    assert slots_text({"right": "c", "left": "a"}) == "? c ? a"


def test_only_moves_that_were_seen_are_known() -> None:
    steps = [
        Step(Action("a", "up"), "left", 3),
        Step(Action("b", "up"), "bump", 3),
        Step(None, "bad", 3),
        Step(Action("c", "up"), "fell", 7),
    ]
    assert seen_moves(steps) == {"left": "a"}

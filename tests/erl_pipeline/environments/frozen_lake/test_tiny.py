"""Extraction in the compact format, and its demonstrations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import islice

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.environments.demonstrations import Demonstration
from erl_pipeline.environments.frozen_lake import ENVIRONMENT
from erl_pipeline.environments.frozen_lake.game import FrozenLakeBoard
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.environments.frozen_lake.tasks import TASKS
from erl_pipeline.environments.frozen_lake.tiny import (
    TINY,
    CompactExtraction,
    FrozenLakePlayer,
    extraction_answer,
    merge_answer,
)
from erl_pipeline.environments.grid_games.boards import Direction
from erl_pipeline.environments.grid_games.game import Action, Step
from erl_pipeline.environments.grid_games.tiny import DemonstratedEpisode, seen_moves
from erl_pipeline.environments.messages import Message, user_message
from erl_pipeline.environments.prompt_format import EpisodeRecord, ExperienceOperation
from erl_pipeline.policies.tiny.model import to_words
from storage.errors import ConfigError

WORDS = ("a", "b", "c", "d")
TRUTH: dict[Direction, str] = {"up": "a", "right": "b", "down": "c", "left": "d"}


def player(
    board: FrozenLakeBoard, notes: dict[Direction, str], random_intent: float = 0.0
) -> FrozenLakePlayer:
    return FrozenLakePlayer(random.Random(0), board, WORDS, notes, random_intent)


def test_with_full_notes_it_walks_the_shortest_path() -> None:
    walker = player(FrozenLakeBoard(("SHG", "FFF")), TRUTH)
    assert walker.plan(max_steps=6) == "down c right b right b up a"
    assert walker.move() == "down c"


def test_it_keeps_to_what_it_has_seen() -> None:
    """Only right leads towards the goal. The word that moved left is never used for right again."""
    board = FrozenLakeBoard(("FSG",))
    for seed in range(20):
        walker = FrozenLakePlayer(random.Random(seed), board, WORDS, {}, 0.0)
        walker.learn(Step(Action("d", "right"), "left", 1, 0))
        assert walker.move().split()[0] == "right"
        assert walker.move().split()[1] != "d"


def test_a_bump_rules_out_the_directions_that_lead_somewhere() -> None:
    """In the corner of a single row only right moves: a word that bumped cannot be right."""
    for seed in range(20):
        walker = FrozenLakePlayer(random.Random(seed), FrozenLakeBoard(("SFG",)), WORDS, {}, 0.0)
        walker.learn(Step(Action("b", "right"), "bump", 0, 0))
        aim, word = walker.move().split()
        assert aim == "right"
        assert word != "b"


def test_of_the_worlds_that_are_left_it_believes_what_agrees_with_most_notes() -> None:
    """The notes have right and left swapped. Once `d` has moved right, the notes for right and left are
    refuted, and those for up and down still hold."""
    notes: dict[Direction, str] = {"up": "a", "right": "d", "down": "c", "left": "b"}
    for seed in range(20):
        walker = FrozenLakePlayer(random.Random(seed), FrozenLakeBoard(("FSFG",)), WORDS, notes, 0.0)
        assert walker.move() == "right d"
        walker.learn(Step(Action("d", "right"), "left", 1, 0))
        assert walker.move() == "right b"


def test_a_refuted_note_leaves_the_others_standing() -> None:
    """The notes say that `a` moves up, but it moved down: `c`, which the notes have for down, is the best
    guess for up."""
    notes: dict[Direction, str] = {"up": "a", "down": "c"}
    board = FrozenLakeBoard(("FSF", "FFF", "FGF"))
    beliefs = set()
    for seed in range(40):
        walker = FrozenLakePlayer(random.Random(seed), board, WORDS, notes, 0.0)
        walker.learn(Step(Action("a", "up"), "down", 1, 4))
        beliefs.add(walker.move())
    assert beliefs == {"down a"}


def test_random_intent_aims_in_all_directions() -> None:
    walker = player(FrozenLakeBoard(("SFG",)), TRUTH, random_intent=1.0)
    assert {walker.move() for _ in range(100)} == {"up a", "right b", "down c", "left d"}


CONFIG = FrozenLakeConfig()


def episodes(
    count: int, environment: FrozenLakeConfig = CONFIG, **settings: float
) -> list[DemonstratedEpisode]:
    boards = TASKS.generate(environment, "training", 100)
    stream = random.Random(0)
    config = ColdStartConfig.model_validate({"reflections_per_failure": 2, **settings})
    return [TINY.demonstrate(stream, environment, config, boards) for _ in range(count)]


def many(
    count: int, environment: FrozenLakeConfig = CONFIG, **settings: float
) -> list[Sequence[Demonstration]]:
    return [episode.conversations for episode in episodes(count, environment, **settings)]


def test_failed_attempts_are_followed_by_two_reflections_and_all_fits_the_context() -> None:
    room = TINY.context_length(CONFIG)
    kinds = set()
    for demonstrations in many(200):
        kinds.add(len(demonstrations))
        for reflection in demonstrations[1:]:
            # <bos> <user>, 16 cells, "trace", 6 steps of 4 words, then how the attempt ended.
            assert to_words(reflection)[0][2 + 16 + 1 + 24] in {"fell", "lost"}
        assert all(len(to_words(shown)[0]) <= room for shown in demonstrations)
    assert kinds == {1, 3}


@pytest.mark.parametrize(("share", "expected"), [(1.0, {"? ? ? ?"}), (0.0, set())])
def test_blank_notes_come_as_often_as_asked(share: float, expected: set[str]) -> None:
    slots = {" ".join(to_words(shown[0])[0][19:23]) for shown in many(50, blank_notes=share)}
    assert slots & {"? ? ? ?"} == expected


def test_plans_are_demonstrated_in_one_turn() -> None:
    environment = FrozenLakeConfig(action_mode="plan")
    for demonstrations in many(50, environment):
        assert [message["role"] for message in demonstrations[0]].count("assistant") == 1


def test_reflections_on_one_attempt_differ_in_what_is_remembered() -> None:
    remembered = [
        {to_words(reflection)[0][-11:-7] == ["?"] * 4 for reflection in episode.reflections}
        for episode in episodes(100)
        if episode.reflections
    ]
    assert {len(kinds) for kinds in remembered} == {1, 2}  # both blank or both not, and one of each


def test_what_an_attempt_has_shown_is_asked_of_its_reflections() -> None:
    for episode in episodes(100):
        words = [list(question.demonstration[-1]["content"].split()) for question in episode.questions]
        for question, said in zip(episode.questions, words, strict=True):
            # up, right, down, left
            assert [said[place] for place in question.places] == [
                episode.seen[d] for d in ("up", "right", "down", "left") if d in episode.seen
            ]
        assert len(words) == (len(episode.reflections) if episode.seen else 0)


def test_a_realm_is_named_and_tells_nothing() -> None:
    """Any realm occurs with any world, so that its name alone says nothing about the action words."""
    environment = FrozenLakeConfig(actions="realms")
    names = {shown[0][0]["content"].split()[0] for shown in many(500, environment)}
    assert names == {f"r{number}" for number in range(24)}


def test_only_moves_that_were_seen_are_known() -> None:
    steps = [
        Step(Action("a", "up"), "left", 3, 3),
        Step(Action("b", "up"), "bump", 3, 3),
        Step(None, "bad", 3, 3),
        Step(Action("c", "up"), "fell", 3, 7),
    ]
    assert seen_moves(steps) == {"left": "a"}


def test_retries_are_demonstrated_only_where_they_are_asked_for() -> None:
    assert {episode.retry for episode in episodes(100)} == {None}
    assert all((episode.retry is None) == (not episode.reflections) for episode in episodes(100, retries=1.0))


def test_a_demonstrated_retry_is_told_of_the_failed_attempt_and_knows_what_it_showed() -> None:
    parts = TINY.parts(CONFIG)
    assert parts is not None
    room = parts.context_length + parts.retry_tokens
    told = set()
    for episode in episodes(200, retries=1.0):
        if episode.retry is None:
            continue
        reflection, retry = to_words(episode.reflections[0])[0], to_words(episode.retry)[0]
        # <bos> <user>, 16 cells, notes and 4 slots, then the trace of the reflection's prompt and its end.
        assert retry[23:49] == reflection[18:44]
        slots = retry[19:23]
        assert slots in (["?"] * 4, reflection[-5:-1])
        told.add(slots == ["?"] * 4)
        trace = reflection[19:43]
        seen = {outcome: word for word, outcome in zip(trace[1::4], trace[2::4], strict=True)}
        aims = retry[retry.index("<assistant>") + 1], retry[retry.index("<assistant>") + 2]
        assert aims[1] == seen.get(aims[0], aims[1])
        assert len(retry) <= room
    assert told == {True, False}


def test_without_retries_the_other_demonstrations_are_as_before() -> None:
    assert many(20) == many(20, retries=0.0)


def test_no_word_is_twice() -> None:
    words = TINY.vocabulary(FrozenLakeConfig())
    assert len(words) == len(set(words))
    assert {"@", "a", "up", "c15", "notes", "?", ".", "lost"} <= set(words)


def test_a_word_with_two_meanings_is_refused() -> None:
    with pytest.raises(ConfigError, match="'fell' has another meaning"):
        TINY.vocabulary(FrozenLakeConfig(action_words=("a", "b", "c", "fell")))
    with pytest.raises(ConfigError, match=r"'a' has another meaning"):
        TINY.vocabulary(FrozenLakeConfig(symbols=("a", "#", "$", "&")))


def test_the_context_holds_the_longest_attempt() -> None:
    # 16 cells, 4 slots, <bos> <user> notes <assistant>; 6 turns of 7 words; 6 spare words per turn.
    assert TINY.context_length(FrozenLakeConfig()) == 16 + 4 + 4 + 6 * 7 + 6 * 6


def test_demonstrations_speak_in_the_words_and_follow_from_the_seed() -> None:
    parts = ENVIRONMENT.tiny.require(FrozenLakeConfig(training_boards=50))
    first, again = (
        list(islice(parts.demonstrations(random.Random(3), ColdStartConfig()), 20)) for _ in range(2)
    )
    assert first == again
    conversations = [shown for episode in first for shown in episode]
    said = {word for shown in conversations for message in shown for word in message["content"].split()}
    assert said <= set(parts.words)


def test_prose_has_no_parts() -> None:
    with pytest.raises(ValueError, match=r"type: tiny; policy\.type: tiny needs format: compact"):
        ENVIRONMENT.tiny.require(FrozenLakeConfig(format="prose"))


PROMPTS = CompactExtraction(("a", "b", "c", "d"), max_steps=3)
TURNS: list[Message] = [
    {"role": "assistant", "content": "right a"},
    user_message("right c1"),
    {"role": "assistant", "content": "down"},
    user_message("bad c1"),
    {"role": "assistant", "content": "right a"},
]


def record(*lessons: str) -> EpisodeRecord:
    opening = [user_message(f"@ # & notes {lessons[-1] if lessons else '? ? ? ?'}")]
    return EpisodeRecord(opening, TURNS, lessons, "goal", 1.0)


def test_an_episode_is_shown_without_the_notes_and_with_the_lesson_apart() -> None:
    (bare,) = PROMPTS.extraction(record())
    trace = "trace right a right c1 . . bad c1 right a . . goal"
    assert bare["content"] == f"@ # & {trace} memory ? ? ? ? extract"
    (guided,) = PROMPTS.extraction(record("b a ? ?"))
    assert guided["content"] == f"@ # & {trace} memory b a ? ? extract"
    assert PROMPTS.situation(record("b a ? ?")) == "@ # & notes ? ? ? ?"


@pytest.mark.parametrize(
    ("answer", "lessons", "operations"),
    [
        ("return", 0, [ExperienceOperation("return")]),
        ("add ? a ? ?", 1, [ExperienceOperation("add", "? a ? ?")]),
        ("update ? a ? ?", 1, [ExperienceOperation("update", "? a ? ?", (0,))]),
        ("update ? a ? ?", 0, None),
        ("add ? ? ? ?", 0, None),
        ("add ? a ?", 0, None),
        ("add ? a ? up", 0, None),
        ("return ? a ? ?", 0, None),
        ("", 0, None),
    ],
)
def test_an_answer_is_one_operation(
    answer: str, lessons: int, operations: list[ExperienceOperation] | None
) -> None:
    assert PROMPTS.read_extraction(answer, lessons) == operations


def test_texts_are_merged_four_slots_at_a_time() -> None:
    (asked,) = PROMPTS.merging(["? a ? ?", "b ? ? ?"])
    assert asked["content"] == "merge ? a ? ? b ? ? ?"
    assert PROMPTS.read_merging("b a ? ? c ? ? ?") == ["b a ? ?", "c ? ? ?"]
    assert PROMPTS.read_merging("return") == []
    for ill_formed in ("", "b a ?", "? ? ? ?", "b a ? ? return"):
        assert PROMPTS.read_merging(ill_formed) is None


Slots = Mapping[Direction, str]


@pytest.mark.parametrize(
    ("lesson", "shown", "answer"),
    [
        ({}, {}, "return"),
        ({}, {"right": "a"}, "add ? a ? ?"),
        ({"right": "a"}, {"right": "a"}, "return"),
        ({"up": "b"}, {"right": "a"}, "update b a ? ?"),
        ({"up": "a", "left": "c"}, {"right": "a"}, "update ? a ? c"),  # the lesson was wrong about `a`
    ],
)
def test_what_was_seen_is_believed_more_than_the_lesson(lesson: Slots, shown: Slots, answer: str) -> None:
    assert extraction_answer(lesson, shown) == answer


def test_lessons_that_agree_become_one() -> None:
    assert merge_answer([{"up": "a"}, {"right": "b"}]) == "a b ? ?"
    assert merge_answer([{"up": "a"}, {"up": "b"}]) == "return"
    assert merge_answer([{"up": "a"}, {"right": "a"}, {"up": "a", "down": "c"}]) == "a ? c ? ? a ? ?"


def test_demonstrations_are_answers_in_the_words_of_the_extractor() -> None:
    parts = ENVIRONMENT.tiny.extractor(FrozenLakeConfig())
    assert parts is not None
    shown = parts.demonstrations(random.Random(0), ColdStartConfig())
    prompts = CompactExtraction(FrozenLakeConfig().action_words, FrozenLakeConfig().max_steps)
    answers = set()
    for asked, answer in (demonstration for _ in range(100) for demonstration in next(shown)):
        words = [*asked["content"].split(), *answer["content"].split()]
        assert set(words) <= set(parts.words)
        assert len(words) + 4 <= parts.context_length
        if asked["content"].startswith("merge"):
            assert prompts.read_merging(answer["content"]) is not None
        else:
            told = " ".join(asked["content"].split()[-5:-1])
            assert prompts.read_extraction(answer["content"], int(told != "? ? ? ?")) is not None
            answers.add(answer["content"].split()[0])
    assert answers == {"add", "update", "return"}


def test_plans_and_prose_have_no_form_for_a_tiny_extractor() -> None:
    for settings in (FrozenLakeConfig(action_mode="plan"), FrozenLakeConfig(format="prose")):
        assert ENVIRONMENT.tiny.extractor(settings) is None
        assert ENVIRONMENT.tiny.experience(settings) is None

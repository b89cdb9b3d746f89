"""Corrected answers become rows of a dataset, and a night trains on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.served_feedback import ServedFeedbackConfig
from erl_pipeline.serving.learning.rows import Batch, episode_rows
from erl_pipeline.stages.training.distillation import DATASET
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.lineage.trained_on import RowFilter, TrainedOn
from storage.serving.collected import SERVED_TRAJECTORIES, ServedCorrection
from storage.serving.forgetting import forget_user
from storage.serving.traffic import Feedback, Record
from storage.serving.users import NamedUser
from storage.tables.training import SftRow, read_sft_rows
from tests.erl_pipeline.runs.small_runs import go, ids, small
from tests.erl_pipeline.serving.learning.served_traffic import (
    RUN,
    at,
    conversations,
    log,
    rating,
    sampled_rows,
    turn,
)
from tests.erl_pipeline.serving.learning.small_nights import begin_production, due, judged, night_of, slept

SAID = "up down"
"""Words that the tiny policy knows."""


def correction(name: str, call: str, text: str = SAID, second: float = 1, **changes: str) -> Feedback:
    given: dict[str, Any] = {"call_id": call, "metric": "correction", "value": text, **changes}
    return rating(name, None, received=at(second), **given)


def corrections_of(*records: Record, asked: str | None = None) -> Sequence[ServedCorrection]:
    batch = Batch("artifact", 3, "first_attempt", 0.75, lambda said: asked and str(said))
    return episode_rows(batch, "episode", records).corrections


def test_the_newest_correction_of_a_call_says_behind_which_tokens_and_messages_it_belongs() -> None:
    records = (
        turn("a"),  # 2 prompt tokens, 2 sampled ones
        turn("b", after="a", arrived=at(2), context_token_ids=(7, 8, 9)),
        correction("old", "call-b", "no"),
        correction("new", "call-b", " yes\n", second=5),
        correction("unknown", "call-c"),
        correction("empty", "call-a", " "),
    )

    (found,) = corrections_of(*records)

    row = episode_rows(Batch("artifact", 3, "first_attempt", 0.75, lambda _: None), "episode", records)
    assert found == ServedCorrection(
        feedback_id="new",
        trajectory_id=row.trajectories[0].trajectory_id,
        call_id="call-b",
        messages_before=3,  # asked, answered, asked again
        tokens_before=5,  # 2 sampled ones, 3 between the turns
        text="yes",
    )


def test_of_several_choices_one_is_corrected_and_of_a_lost_prompt_or_what_is_held_out_none() -> None:
    choices = (turn("a"), turn("b", call_id="call-a", arrived=at(1)))
    assert len(corrections_of(*choices, correction("1", "call-a"))) == 1
    assert corrections_of(turn("b", after="a"), correction("1", "call-b")) == []
    assert corrections_of(turn("a"), correction("1", "call-a"), asked="held out") == []


def corrected(store: Path, policy: str, count: int = 16) -> list[Record]:
    """Rated conversations of two users; the answers of every fourth, user `gone`'s, and of the first are
    corrected."""
    records: list[Record] = []
    for each in conversations(store, count, policy):
        number = int(each.episode_id[1:])
        user = "gone" if number % 4 == 1 else "stays"
        records.append(each.model_copy(update={"user": user}))
        if isinstance(each, Feedback) and (user == "gone" or number == 0):
            named = {"episode": each.episode_id, "user": user}
            records.append(correction(f"c{number}", f"call-t{number}", words(store), number, **named))
    return records


def words(store: Path) -> str:
    """An answer that the tiny policy can read."""
    said = json.loads(sampled_rows(store)[0].messages)[-1]["content"]
    return f"{said} {said}"


def dataset(store: Path, night: str) -> list[SftRow]:
    (made,) = [id_ for place, id_ in ids(store, night).items() if place.stage == "build_corrections"]
    return read_sft_rows([ArtifactStore(str(store)).open(made).path(DATASET)])


def test_a_night_trains_on_corrected_answers_and_lineage_names_who_gave_them(served: Path) -> None:
    policy = begin_production(served)
    log(served, *corrected(served, policy))
    night = night_of(due(served, corrections=True))
    slept(served, night)
    made = judged(served, night, corrections=True).verdict.checkpoint_id

    rows = dataset(served, night.name)
    assert [row.sft_row_id for row in rows] == ["s-c0", "s-c1", "s-c5", "s-c9", "s-c13"]
    first, asked = rows[0], sampled_rows(served)[0]
    assert first.prompt == ({"role": "user", "content": "question 0"},)
    assert first.completion == ({"role": "assistant", "content": words(served)},)
    assert first.source_span_ids == ("call-t0",)
    before = len(asked.prompt_token_ids)
    assert first.input_token_ids[:before] == asked.prompt_token_ids
    # The words, each a token, and the end of the turn.
    trained = len(words(served).split()) + 1
    assert first.loss_mask == (0,) * before + (1,) * trained
    found = TrainedOn(ArtifactStore(str(served)), made)
    # The corrections are the last that was trained; the ratings one checkpoint before.
    taught = found.rows(RowFilter()).collect()
    own = taught.filter(taught["how"] == "directly")
    assert own["sft_row_id"].to_list() == [row.sft_row_id for row in rows]
    assert set(found.texts(own)["text"]) == {words(served)}  # not what the policy had said
    assert taught.filter(taught["depth"] == 1).height == 16
    named = found.beside(own, SERVED_TRAJECTORIES)[first.trajectory_id]
    assert (named["episode_id"], named["call_ids"], named["feedback_ids"]) == (
        "e0",
        ["call-t0"],
        ["f0", "c0"],
    )


def test_an_unrated_conversation_can_be_corrected(served: Path) -> None:
    policy = begin_production(served)
    unrated = [each for each in conversations(served, 1, policy, first=50) if not isinstance(each, Feedback)]
    log(served, *conversations(served, 8, policy), *unrated)
    log(served, correction("c50", "call-t50", words(served), episode="e50"))

    night = night_of(due(served, corrections=True))
    slept(served, night)

    assert [row.sft_row_id for row in dataset(served, night.name)] == ["s-c50"]


def test_without_the_setting_a_night_has_the_ids_that_it_has_without_corrections(served: Path) -> None:
    policy = begin_production(served)
    log(served, *corrected(served, policy))

    found = due(served)
    slept(served, night_of(found))

    assert night_of(found).config.served_feedback == ServedFeedbackConfig()
    made = {place.stage: id_ for place, id_ in ids(served, "small-night-001").items()}
    assert not {"build_corrections", "fine_tune_corrections"} & made.keys()
    assert found.collected is not None
    assert found.collected.batch is not None
    batch = ArtifactStore(str(served)).open(found.collected.batch.trajectories_id).manifest
    assert "corrections" not in {**batch.settings, **batch.counters}
    assert {file.path for file in batch.files} == {"trajectories.parquet", "served.parquet"}


def test_a_forgotten_user_has_no_correction_left(served: Path) -> None:
    policy = begin_production(served)
    log(served, *corrected(served, policy))
    night = night_of(due(served, corrections=True))

    forget_user(str(served), RUN, NamedUser("acme", ("gone",)))
    slept(served, night)
    assert [row.sft_row_id for row in dataset(served, night.name)] == ["s-c0"]
    made = judged(served, night, corrections=True, promotes=True).verdict.checkpoint_id

    found = forget_user(str(served), RUN, NamedUser("acme", ("stays",)))
    assert dataset(served, night.name) == []
    assert made in [each.manifest.artifact_id for each in found.learners]


def test_an_ordinary_run_has_no_corrections_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"served_feedback\.corrections: only served traffic"):
        go(small(served_feedback={"corrections": True}), tmp_path)

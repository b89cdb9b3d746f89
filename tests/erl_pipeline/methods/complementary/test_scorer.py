"""The variant `weights`: its loss, its label, what is drawn, and how weights enter an update."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.methods.complementary.score import trajectory_text, weighted_sequences
from erl_pipeline.methods.complementary.scorer import WeightScorer, improved, scorer_loss
from erl_pipeline.methods.complementary.tables import drawn_by_weight
from erl_pipeline.trainers.sequences import trajectory_sequence
from tests.erl_pipeline.stages.extractor.rows import attempt


def test_the_loss_is_cross_entropy_and_distance() -> None:
    """w = .8 with label 1: .5 x .2231 + .1 x .2 = .1316."""
    assert float(scorer_loss(torch.tensor([0.8]), torch.tensor([1.0]))) == pytest.approx(0.1316, abs=1e-4)


def test_the_label_says_whether_the_policy_has_come_to_like_it() -> None:
    assert (improved(-0.4, -0.5), improved(-0.5, -0.5), improved(-0.6, -0.5)) == (1.0, 0.0, 0.0)


def test_the_text_of_a_trajectory_has_the_tools_that_it_called() -> None:
    call = {"function": {"name": "search", "arguments": {"query": "Bragg"}}}
    messages = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "content": "A town."},
    ]
    row = attempt(1, messages=json.dumps(messages), feedback="lost")
    assert trajectory_text(row) == 'Who?\nI look.\nsearch({"query": "Bragg"})\nA town.\nlost'


def test_weights_multiply_losses_of_fresh_and_stored_rows_alike() -> None:
    fresh = [trajectory_sequence(attempt(1), 1.5), trajectory_sequence(attempt(2), -1.5)]
    again = attempt(9, parent_trajectory_id="a3", role="replay")
    rows = weighted_sequences(fresh, [again], {"a3": 0.25}, {"a1": 0.8, "a3": 0.5}, ObjectiveConfig())
    assert [(row.trajectory_id, row.advantage, row.weight) for row in rows] == [
        ("a1", 1.5, 0.8),
        ("a2", -1.5, 1.0),
        ("a9", 0.25, 0.5),
    ]


def test_a_stored_attempt_that_a_limit_cut_off_is_left_out_where_fresh_ones_are() -> None:
    again = [
        attempt(8, parent_trajectory_id="a3", role="replay"),
        attempt(9, parent_trajectory_id="a4", role="replay", truncated=True),
    ]
    weights = {
        truncated: [
            row.weight
            for row in weighted_sequences(
                [],
                again,
                {"a3": 0.25, "a4": 0.25},
                {"a3": 0.5, "a4": 0.5},
                ObjectiveConfig(truncated=truncated),
            )
        ]
        for truncated in ("train", "leave_out")
    }
    assert weights == {"train": [0.5, 0.5], "leave_out": [0.5, 0.0]}


def test_a_larger_weight_is_drawn_more_often_and_nothing_twice() -> None:
    drawn = Counter(place for seed in range(400) for place in drawn_by_weight([0.9, 0.1], 1, seed))
    assert 0.85 < drawn[0] / 400 < 0.95
    assert sorted(drawn_by_weight([0.5, 0.0, 0.5], 9, 1)) == [0, 1, 2]


def test_small_weights_are_drawn_in_their_proportion() -> None:
    """A scorer that finds nothing improved gives weights near 0; .0003 of .0004 is three quarters."""
    drawn = Counter(place for seed in range(400) for place in drawn_by_weight([1e-4, 3e-4], 1, seed))
    assert 0.7 < drawn[1] / 400 < 0.8


def test_training_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    vectors = np.eye(4, dtype=np.float32)
    labels = np.array([1, 0, 1, 0], dtype=np.float32)

    def trained(steps: list[int]) -> WeightScorer:
        scorer = WeightScorer(4, 1, 64, 1e-2, seed=1)
        for number, count in enumerate(steps):
            if number:
                fresh = WeightScorer(4, 1, 64, 1e-2, seed=2)
                fresh.load(tmp_path / "scorer")
                scorer = fresh
            first, last = scorer.train(vectors, labels, count, loss_weight=0.5, distance_weight=0.1)
            assert last < first
            scorer.save(tmp_path / "scorer")
        return scorer

    once, twice = trained([8]), trained([4, 4])
    assert once.weights(vectors) == twice.weights(vectors)
    assert np.argmax(once.weights(vectors)) in (0, 2)

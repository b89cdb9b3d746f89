"""How a teacher differs from the policy. The tokens are those of `test_score_teacher.py`, whose gaps are
-.322099 and .509698 nats."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from erl_pipeline.config.self_distillation import SelfDistillationConfig
from erl_pipeline.stages.training.gaps import gap_metrics, token_class
from storage.tables.teacher_scores import TeacherScores
from tests.erl_pipeline.episodes.script import play
from tests.erl_pipeline.stages.training.test_score_teacher import POLICY, TEACHER


def test_gaps_are_counted_for_successes_and_failures() -> None:
    """The two gaps of a success, and one of a failure; the limit is .5, and one of three is beyond it."""
    (row,), _ = play(["right a", "right a"])
    policy = tuple(POLICY.tolist())
    success = replace(row, response_token_ids=(7, 8), response_mask=(1, 1), behaviour_logprobs=policy)
    failure = replace(
        row, success=False, response_token_ids=(7,), response_mask=(1,), behaviour_logprobs=(-1.0,)
    )

    found = gap_metrics(
        [
            (
                replace(success, success=True),
                TeacherScores("a", 0, "r", "", logprobs=TEACHER, entropies=np.array([0.5, 0.2])),
            ),
            (failure, TeacherScores("b", 0, "r", "", logprobs=np.array([-1.3]), entropies=np.array([0.8]))),
        ],
        SelfDistillationConfig(gap_limit=0.5),
        {7: "words", 8: "digits"}.__getitem__,
    )

    assert found["gap_of_successes"] == pytest.approx((-0.322099 + 0.509698) / 2, abs=1e-6)
    assert found["gap_of_failures"] == pytest.approx(-0.3)
    assert found["gap_beyond_limit"] == pytest.approx(1 / 3)
    assert (found["scored_length"], found["teacher_entropy"]) == (1.5, 0.5)
    # A token after half of two tokens is in the sixth tenth; one alone in the first.
    assert found["gap_of_tenth_6"] == pytest.approx(0.509698, abs=1e-6)
    assert found["gap_of_tenth_1"] == pytest.approx((-0.322099 - 0.3) / 2, abs=1e-6)
    whole = 0.322099 + 0.509698 + 0.3
    assert found["gap_of_top_hundredth"] == pytest.approx(0.509698 / whole, abs=1e-6)
    assert found["gap_of_words"] == pytest.approx((-0.322099 - 0.3) / 2, abs=1e-6)
    assert found["gap_of_digits"] == pytest.approx(0.509698, abs=1e-6)
    assert found["gap_share_of_words"] == pytest.approx((0.322099 + 0.3) / whole, abs=1e-6)
    assert found["gap_share_of_digits"] == pytest.approx(0.509698 / whole, abs=1e-6)


def test_a_token_has_one_class() -> None:
    texts = ["<end>", " \n", " right", "12", ").", "x2", "²"]
    tokenizer: Any = SimpleNamespace(all_special_ids=[0], decode=lambda ids: texts[ids[0]])
    classes = [token_class(tokenizer, place) for place in range(len(texts))]
    assert classes == ["special", "space", "words", "digits", "punctuation", "mixed", "digits"]

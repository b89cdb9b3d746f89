"""Self-distillation: prompts with hindsight, scores of tokens, and the update that learns from them.

The numbers are worked out by hand for two tokens over four words. The policy's logits are (1, .5, -.5, 0)
and (.2, -.3, .8, .1), the teacher's probabilities (.5, .2, .2, .1) and (.1, .1, .7, .1), and the words 1 and
2 were sampled. The gaps log q - log p are -.322099 and .509698.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.self_distillation import SelfDistillationConfig, SelfDistilledRoles
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.objectives.policy_gradient import clipped_surrogate
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.policies.checkpoints import WeightsSettings
from erl_pipeline.stages.training.score_teacher import (
    SCORES,
    Hindsight,
    TeacherSettings,
    gap_metrics,
    hindsight_of,
    scores,
)
from erl_pipeline.trainers.local import TRAINER
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.artifacts.store import ArtifactStore
from storage.tables.parquet import read_rows
from storage.tables.teacher_scores import TEACHER_SCORES, TeacherScores
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import CONTEXT, TOKENIZER, play
from tests.erl_pipeline.runs.small_runs import SMALL, go, ids
from tests.random_models import save_byte_llama

LOGITS = torch.tensor([[1.0, 0.5, -0.5, 0.0], [0.2, -0.3, 0.8, 0.1]], dtype=torch.float64)
SAMPLED = torch.tensor([[1], [2]])
POLICY = LOGITS.log_softmax(-1).gather(1, SAMPLED)[:, 0]
TEACHER = np.log([0.2, 0.7])


def attempt() -> TrainingSequence:
    """An environment's token stands between the two that were sampled."""
    first, second = POLICY.tolist()
    return TrainingSequence("a", "first_attempt", (0,), (1, 3, 2), (1, 0, 1), (first, 0.0, second), 1.0)


def settings(**changes: Any) -> TeacherSettings:
    return TeacherSettings(
        self_distillation=SelfDistillationConfig(**changes),
        roles=SelfDistilledRoles(attempt="first_attempt", retry="second_attempt"),
        microbatch_tokens=64,
        optimizer=OptimizerConfig(),
        trainer=TRAINER.settings(),
        weights=WeightsSettings(dtype="float32", lora=None, adapter_seed=None),
    )


def hindsight(played: list[Trajectory], context_length: int = CONTEXT, **changes: Any) -> Any:
    return hindsight_of(played, settings(**changes), ChatTokenizer(TOKENIZER), context_length, 0)


def test_the_gap_is_added_to_the_advantage_of_each_token() -> None:
    found = scores(attempt(), TEACHER, Hindsight((0, 9), "r"), SelfDistillationConfig(coefficient=0.5))
    taught = replace(attempt(), token_advantages=found.advantages)

    assert found.advantages == pytest.approx((-0.161050, 0.0, 0.254849), abs=1e-6)
    assert taught.trained_advantages == pytest.approx([0.838950, 1.254849], abs=1e-6)
    assert (found.source_trajectory_id, found.not_scored) == ("r", "")

    logits = LOGITS.clone().requires_grad_()
    loss = clipped_surrogate(
        logits.log_softmax(-1).gather(1, SAMPLED)[:, 0],
        POLICY,
        torch.tensor(taught.trained_advantages),
        lowest_ratio=torch.tensor([0.8, 0.8]),
        highest_ratio=torch.tensor([1.2, 1.2]),
    ).loss.sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.flatten().tolist() == pytest.approx(
        [0.381768, -0.607396, 0.085184, 0.140445, 0.289570, 0.175633, -0.727217, 0.262014], abs=1e-6
    )


def test_a_gap_counts_up_to_its_limit() -> None:
    found = scores(
        attempt(), TEACHER, Hindsight((0,), "r"), SelfDistillationConfig(coefficient=1.0, gap_limit=0.4)
    )

    assert found.advantages == pytest.approx((-0.322099, 0.0, 0.4), abs=1e-6)


def test_a_group_without_an_advantage_is_trained_by_its_gaps_alone() -> None:
    silent = replace(attempt(), advantage=0.0)

    assert not silent.has_advantage
    assert replace(silent, token_advantages=(0.0, 0.0, 0.1)).has_advantage


def test_gaps_are_counted_for_successes_and_failures() -> None:
    """The two gaps of a success, and one of a failure; the limit is .5, and one of three is beyond it."""
    (row,), _ = play(["right a", "right a"])
    policy = tuple(POLICY.tolist())
    success = replace(row, response_mask=(1, 1), behaviour_logprobs=policy)
    failure = replace(row, success=False, response_mask=(1,), behaviour_logprobs=(-1.0,))

    found = gap_metrics(
        [
            (replace(success, success=True), TeacherScores("a", "r", "", tuple(TEACHER), (0.0, 0.0))),
            (failure, TeacherScores("b", "r", "", (-1.3,), (0.0,))),
        ],
        SelfDistillationConfig(gap_limit=0.5),
    )

    assert found["gap_of_successes"] == pytest.approx((-0.322099 + 0.509698) / 2, abs=1e-6)
    assert found["gap_of_failures"] == pytest.approx(-0.3)
    assert found["gap_beyond_limit"] == pytest.approx(1 / 3)
    assert found["gap_of_top_hundredth"] == pytest.approx(0.509698 / (0.322099 + 0.509698 + 0.3), abs=1e-6)


def test_a_reflection_teaches_through_the_prompt_of_the_second_attempt() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])
    first, reflection, second = rows

    (found,) = hindsight(rows).values()

    assert found == Hindsight(second.prompt_token_ids, reflection.trajectory_id)
    assert found.prompt_token_ids != first.prompt_token_ids


def test_an_attempt_without_a_second_one_has_no_hindsight() -> None:
    rows, _ = play(["right a", "right a"])

    assert hindsight(rows) == {rows[0].trajectory_id: "no_retry"}


def test_a_prompt_that_leaves_no_room_for_the_answer_has_none() -> None:
    rows, _ = play(["down b", "? a b ?", "right a", "right a"])
    needed = len(rows[2].prompt_token_ids) + len(rows[0].response_token_ids)

    assert hindsight(rows, needed)[rows[0].trajectory_id] != "too_long"
    assert hindsight(rows, needed - 1) == {rows[0].trajectory_id: "too_long"}


def test_a_sibling_that_succeeded_stands_in_the_prompt_but_never_the_attempt_itself() -> None:
    """Of two attempts at a task one succeeded: it teaches the other, and nobody teaches it."""
    (good,), (bad, *_) = play(["right a", "right a"])[0], play(["down b", "? a b ?", "down b"], sample=1)[0]
    assert (good.success, bad.success) == (True, False)
    assert good.group_id == bad.group_id

    found = hindsight([good, bad], hindsight="sibling", template="{{ text }} {{ task }}")

    assert found[good.trajectory_id] == "no_sibling"
    said = TOKENIZER("right a right a", add_special_tokens=False)["input_ids"]
    prompt = found[bad.trajectory_id].prompt_token_ids
    assert found[bad.trajectory_id].source_trajectory_id == good.trajectory_id
    assert len(prompt) == len(bad.prompt_token_ids) + len(said)
    assert any(list(prompt[at : at + len(said)]) == said for at in range(len(prompt)))


def test_feedback_stands_in_the_prompt_of_failures_alone_where_only_those_are_asked_for() -> None:
    (good,), (bad, *_) = play(["right a", "right a"])[0], play(["down b", "? a b ?", "down b"], sample=1)[0]

    found = hindsight([good, bad], hindsight="feedback", rows="failed", template="{{ task }} {{ text }}")

    assert found[good.trajectory_id] == "succeeded"
    assert found[bad.trajectory_id].source_trajectory_id == bad.trajectory_id


def test_messages_that_do_not_give_the_tokens_of_the_prompt_are_not_rendered_again() -> None:
    (row,) = play(["right a", "right a"])[0]
    other = replace(row, prompt_token_ids=(*row.prompt_token_ids, 1))

    assert hindsight([other], hindsight="feedback") == {row.trajectory_id: "other_prompt"}


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    """Attempts of a random policy, which reads any text."""
    save_byte_llama(tmp_path / "model", positions=2048, layers=1)
    values: dict[str, Any] = {
        "method": {"type": "rlvr"},
        "policy": {"type": "pretrained", "model": str(tmp_path / "model")},
        "sampling": {"max_new_tokens": 4},
        "iterations": 1,
        **changes,
    }
    return RunConfig.model_validate({**SMALL, **values})


def test_a_policy_learns_from_feedback_where_no_group_has_an_advantage(tmp_path: Path) -> None:
    """A random policy never succeeds: without hindsight there is nothing to learn from."""
    hindsight = {"hindsight": "feedback", "coefficient": 1.0}
    go(config(tmp_path), tmp_path / "plain")
    go(config(tmp_path, self_distillation=hindsight), tmp_path / "taught")
    plain, taught = ids(tmp_path / "plain"), ids(tmp_path / "taught")
    store = ArtifactStore(str(tmp_path / "taught"))

    rollouts, update = StageKey(1, "generate_rollouts", ""), StageKey(1, "update_policy", "")
    assert plain[rollouts] == taught[rollouts]
    assert (
        ArtifactStore(str(tmp_path / "plain")).open(plain[update]).manifest.counters["optimizer_steps"] == 0
    )
    scored = store.open(taught[StageKey(1, "score_teacher", "")])
    updated = store.open(taught[update]).manifest
    assert scored.manifest.counters["scored"] == 4
    assert updated.inputs["teacher"] == scored.manifest.artifact_id
    assert updated.counters["optimizer_steps"] == 1
    assert updated.counters["sequences"] == 4
    rows = list(read_rows([scored.path(SCORES)], TEACHER_SCORES))
    assert all(math.isfinite(each) for row in rows for each in row["logprobs"])
    assert {row["source_trajectory_id"] for row in rows} == {row["trajectory_id"] for row in rows}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"type": "complementary"}}, "method complementary cannot be combined with it"),
        ({"method": {"type": "rlvr"}}, "method rlvr writes none; allowed are sibling and feedback"),
        (
            {"method": {"type": "rlvr"}, "self_distillation": {"hindsight": "sibling"}},
            "policy.type: tiny reads only the words",
        ),
        ({"self_distillation": {"template": "{{ answer }}"}}, "unknown variable 'answer'"),
    ],
)
def test_hindsight_that_cannot_be_had_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunConfig.model_validate({**SMALL, "self_distillation": True, **changes})

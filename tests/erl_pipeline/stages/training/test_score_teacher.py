"""Self-distillation: scores of tokens, and the update that learns from them.

The numbers are worked out by hand for two tokens over four words. The policy's logits are (1, .5, -.5, 0)
and (.2, -.3, .8, .1), the teacher's probabilities (.5, .2, .2, .1) and (.1, .1, .7, .1), and the words 1 and
2 were sampled. The gaps log q - log p are -.322099 and .509698.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.self_distillation import SelfDistillationConfig
from erl_pipeline.objectives.policy_gradient import clipped_surrogate
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.training.hindsight import Hindsight
from erl_pipeline.stages.training.score_teacher import SCORES, scores, taught
from erl_pipeline.trainers.local.tokens import token_columns
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence
from storage.artifacts.store import ArtifactStore
from storage.tables.teacher_scores import TeacherScores, read_teacher_scores
from tests.erl_pipeline.runs.planned_runs import SOURCES
from tests.erl_pipeline.runs.small_runs import SMALL, go, ids, small
from tests.random_models import save_byte_llama

LOGITS = torch.tensor([[1.0, 0.5, -0.5, 0.0], [0.2, -0.3, 0.8, 0.1]], dtype=torch.float64)
SAMPLED = torch.tensor([[1], [2]])
POLICY = LOGITS.log_softmax(-1).gather(1, SAMPLED)[:, 0]
TEACHER = np.log([0.2, 0.7])


def attempt() -> TrainingSequence:
    """An environment's token stands between the two that were sampled."""
    first, second = POLICY.tolist()
    return TrainingSequence("a", "first_attempt", (0,), (1, 3, 2), (1, 0, 1), (first, 0.0, second), 1.0)


def said(*logprobs: float) -> TokenScores:
    """What a teacher says of sampled tokens alone."""
    count = len(logprobs)
    columns: Any = (np.array(logprobs), np.full(count, 0.5), *np.zeros((2, count, 0)), np.zeros(count))
    return TokenScores(*columns)


def test_the_gap_is_added_to_the_advantage_of_each_token() -> None:
    how = SelfDistillationConfig(coefficient=0.5)
    (found,) = scores(attempt(), Hindsight((0, 9), "r"), [said(*TEACHER)], how)
    row = taught(attempt(), found, how.for_update)

    assert found.advantages == pytest.approx((-0.161050, 0.0, 0.254849), abs=1e-6)
    assert row.trained_advantages == pytest.approx([0.838950, 1.254849], abs=1e-6)
    assert (found.source_trajectory_id, found.not_scored) == ("r", "")

    logits = LOGITS.clone().requires_grad_()
    loss = clipped_surrogate(
        logits.log_softmax(-1).gather(1, SAMPLED)[:, 0],
        POLICY,
        torch.tensor(row.trained_advantages),
        lowest_ratio=torch.tensor([0.8, 0.8]),
        highest_ratio=torch.tensor([1.2, 1.2]),
    ).loss.sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient.flatten().tolist() == pytest.approx(
        [0.381768, -0.607396, 0.085184, 0.140445, 0.289570, 0.175633, -0.727217, 0.262014], abs=1e-6
    )


def test_a_gap_counts_up_to_its_limit() -> None:
    how = SelfDistillationConfig(coefficient=1.0, gap_limit=0.4)
    (found,) = scores(attempt(), Hindsight((0,), "r"), [said(*TEACHER)], how)

    assert found.advantages == pytest.approx((-0.322099, 0.0, 0.4), abs=1e-6)


def test_a_group_without_an_advantage_is_trained_by_its_gaps_alone() -> None:
    silent = replace(attempt(), advantage=0.0)

    assert not silent.has_advantage
    assert replace(silent, token_advantages=(0.0, 0.0, 0.1)).has_advantage


def contrasted(advantage: float) -> tuple[Any, TrainingSequence]:
    """Of two tokens the right hint says -.9 and -.4, the wrong ones -1.2 and -.4, -.7 and -.5."""
    how = SelfDistillationConfig(hindsight="sibling", combination="modulate")
    row = replace(attempt(), advantage=advantage)
    wrong = (Hindsight((0,), "w"), Hindsight((0,), "v"))
    behind = [said(-0.9, -0.4), said(-1.2, -0.4), said(-0.7, -0.5)]
    found = scores(row, Hindsight((0,), "r", wrong), behind, how)
    return found, taught(row, found[0], how.for_update)


@pytest.mark.parametrize(
    ("advantage", "modulated"), [(0.3, [0.670684, 0.792423]), (-0.3, [0.0, 0.0]), (0.0, [0.0, 0.0])]
)
def test_right_hints_are_held_against_wrong_ones(advantage: float, modulated: list[float]) -> None:
    found, row = contrasted(advantage)

    assert [(each.branch, each.source_trajectory_id) for each in found] == [(0, "r"), (1, "w"), (2, "v")]
    assert found[0].advantages == pytest.approx([0.370684, 0.0, 0.492423], abs=1e-6)
    assert [len(each.advantages) for each in found[1:]] == [0, 0]
    assert row.trained_advantages == pytest.approx(modulated, abs=1e-6)
    assert row.apart == (1.0, 0.0, 1.0)


def test_tokens_that_a_contrast_selects_are_averaged_apart_from_all_others() -> None:
    """Two tokens are selected, at weight 3, and three of another attempt are not."""
    _, selected = contrasted(0.3)
    selected = replace(selected, apart=(3.0, 0.0, 3.0))
    others = TrainingSequence("b", "first_attempt", (0,), (1, 1, 1), (1, 1, 1), (-1.0,) * 3, -1.0)

    columns = token_columns([selected, others], "token_mean", torch.device("cpu"))

    assert columns.policy_weights.tolist() == pytest.approx([1.5, 1.5, 1 / 3, 1 / 3, 1 / 3])


def test_scores_of_other_tokens_are_refused() -> None:
    row = TeacherScores("a", 0, "r", "", logprobs=np.zeros(2), advantages=np.zeros(2))
    with pytest.raises(ValueError, match="3 response tokens and 2 scores"):
        taught(attempt(), row, None)


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
    rows = list(read_teacher_scores(scored.path(SCORES)))
    assert all(math.isfinite(each) for row in rows for each in row.logprobs)
    assert {row.source_trajectory_id for row in rows} == {row.trajectory_id for row in rows}


@pytest.mark.parametrize(
    "how",
    [
        {"combination": "loss", "coefficient": 1.0, "teacher": {"type": "ema", "rate": 0.5}},
        {"combination": "loss", "teacher": "frozen", "loss": {"support": "teacher", "divergence": "forward"}},
    ],
    ids=["average", "frozen"],
)
def test_a_policy_learns_from_a_teacher_of_its_own_weights(tmp_path: Path, how: dict[str, Any]) -> None:
    """Two iterations: at first the teacher is the policy; then it is what the policy began as, or half of
    that and half of what it became."""
    how = {"hindsight": "feedback", **how}
    go(config(tmp_path, self_distillation=how, iterations=2), tmp_path / "taught")
    made = ids(tmp_path / "taught")
    store = ArtifactStore(str(tmp_path / "taught"))

    first = store.open(made[StageKey(1, "score_teacher", "")]).manifest
    second = store.open(made[StageKey(2, "score_teacher", "")])
    begun = first.inputs["checkpoint"]
    trained = store.open(made[StageKey(1, "update_policy", "")])
    assert "teacher" not in first.inputs
    if how["teacher"] == "frozen":
        assert second.manifest.inputs["teacher"] == begun
    else:
        average = store.open(second.manifest.inputs["teacher"])
        assert average.manifest.inputs == {"checkpoint": trained.manifest.artifact_id, "teacher": begun}
        before, after, mean = (
            load_file(each.path("model") / "model.safetensors")
            for each in (store.open(begun), trained, average)
        )
        for name, tensor in mean.items():
            assert torch.allclose(tensor, (before[name] + after[name]) / 2, atol=1e-7), name
    assert trained.manifest.counters["taught_sequences"] == 4
    assert trained.manifest.metrics["distillation_loss"] > 0
    assert 0 < second.manifest.metrics["teacher_tail"] < 1
    rows = list(read_teacher_scores(second.path(SCORES)))
    assert all(len(row.support_ids) == 20 * len(row.tail_logprobs) for row in rows)


@pytest.mark.parametrize("combination", ["advantage", "loss"])
def test_a_coefficient_falls_and_then_no_teacher_is_asked(combination: str) -> None:
    how = {"combination": combination, "coefficient": 0.2, "coefficient_iterations": 2}
    always = {**how, "coefficient_iterations": None}
    plans = [plan_run(small(self_distillation=each, iterations=3), SOURCES) for each in (how, always)]
    fallen, stays = (
        {
            (node.stage.name, node.iteration): cast(Any, node.settings).self_distillation
            for node in plan.nodes
            if node.stage.name in ("score_teacher", "update_policy")
        }
        for plan in plans
    )
    asked = "score_teacher" if combination == "advantage" else "update_policy"
    assert [fallen[asked, iteration].coefficient for iteration in (1, 2)] == [0.2, 0.1]
    assert [stays[asked, iteration].coefficient for iteration in (1, 2, 3)] == [0.2] * 3
    assert ("score_teacher", 3) in stays
    assert ("score_teacher", 3) not in fallen
    assert fallen["update_policy", 3] is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"type": "complementary"}}, "method complementary cannot be combined with it"),
        (
            {"method": {"type": "rlvr"}},
            "method rlvr writes none; allowed are sibling, feedback and demonstration",
        ),
        (
            {"method": {"type": "rlvr"}, "self_distillation": {"hindsight": "sibling"}},
            "policy.type: tiny reads only the words",
        ),
        (
            {"self_distillation": {"hindsight": "feedback", "combination": "modulate"}},
            "allowed with combination: modulate is sibling",
        ),
        (
            {"self_distillation": {"block": "shuffled"}},
            "allowed with hindsight: reflection are own and empty",
        ),
        (
            {
                "self_distillation": {
                    "hindsight": "sibling",
                    "combination": "modulate",
                    "coefficient_iterations": 2,
                }
            },
            "allowed with combination: modulate is null",
        ),
        ({"self_distillation": {"teacher_token_budget": 9}}, "set self_distillation.max_tokens too"),
        (
            # 4 attempts of 100 tokens, each read by the teacher and by the student
            {
                "self_distillation": {
                    "combination": "loss",
                    "max_tokens": 100,
                    "teacher_token_budget": 799,
                }
            },
            "4 attempts of 100 tokens, each read 2 times, are 800",
        ),
        (
            # Three times as many where groups without a signal are made up for
            {
                "self_distillation": {"max_tokens": 100, "teacher_token_budget": 2399, "combination": "loss"},
                "rollouts": {**SMALL["rollouts"], "refill": 3},
            },
            "12 attempts of 100 tokens, each read 2 times, are 2400",
        ),
        ({"self_distillation": {"template": "{{ answer }}"}}, "unknown variable 'answer'"),
    ],
)
def test_hindsight_that_cannot_be_had_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunConfig.model_validate({**SMALL, "self_distillation": True, **changes})

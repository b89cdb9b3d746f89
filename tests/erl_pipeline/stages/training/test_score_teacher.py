"""Self-distillation: prompts with hindsight, scores of tokens, and the update that learns from them.

The numbers are worked out by hand for two tokens over four words. The policy's logits are (1, .5, -.5, 0)
and (.2, -.3, .8, .1), the teacher's probabilities (.5, .2, .2, .1) and (.1, .1, .7, .1), and the words 1 and
2 were sampled. The gaps log q - log p are -.322099 and .509698.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.self_distillation import SelfDistillationConfig, SelfDistilledRoles
from erl_pipeline.environments.interface import Task
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.objectives.policy_gradient import clipped_surrogate
from erl_pipeline.plan.plan import StageKey
from erl_pipeline.runs.run_plans import plan_run
from erl_pipeline.stages.training.gaps import gap_metrics, token_class
from erl_pipeline.stages.training.hindsight import Hindsight, HindsightSources, hindsight_of
from erl_pipeline.stages.training.score_teacher import SCORES, scores, taught
from erl_pipeline.trainers.local.tokens import token_columns
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.tables.teacher_scores import TeacherScores, read_teacher_scores
from storage.tables.trajectories import Trajectory
from tests.erl_pipeline.episodes.script import CONTEXT, TOKENIZER, play
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


def hindsight(
    played: list[Trajectory],
    context_length: int = CONTEXT,
    earlier: Any = (),
    held_out: Any = (),
    **changes: Any,
) -> Any:
    roles = SelfDistilledRoles(attempt="first_attempt", retry="second_attempt")
    how = SelfDistillationConfig(**changes)
    sources = HindsightSources(how, roles, played, earlier, held_out)
    return hindsight_of(sources, ChatTokenizer(TOKENIZER), context_length, 0)


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
    assert hindsight(rows, max_tokens=needed)[rows[0].trajectory_id] != "too_long"
    assert hindsight(rows, max_tokens=needed - 1) == {rows[0].trajectory_id: "too_long"}


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


def test_wrong_hints_are_attempts_that_failed() -> None:
    good = play(["right a", "right a"])[0][0]
    others = [play(["right a", "right a"], sample=1)[0][0]]
    bad = [play(["down b", "? a b ?", "down b"], sample=number)[0][0] for number in (2, 3, 4)]
    changes: dict[str, Any] = {
        "hindsight": "sibling",
        "combination": "modulate",
        "template": "{{ text }} {{ task }}",
    }

    found = hindsight([good, *others, *bad], contrast={"wrong_hints": 2}, **changes)

    hints = found[good.trajectory_id]
    assert hints.source_trajectory_id == others[0].trajectory_id
    assert (
        len({each.source_trajectory_id for each in hints.wrong} & {each.trajectory_id for each in bad}) == 2
    )
    assert len(found[bad[0].trajectory_id].wrong) == 2  # never the attempt itself
    assert hindsight([good, *others], **changes)[good.trajectory_id] == "no_wrong_sibling"


SOLVED: dict[str, Any] = {"hindsight": "demonstration", "template": "{{ text }} {{ task }}"}


def with_solution(row: Trajectory, solution: str) -> Trajectory:
    return replace(row, task_payload=json.dumps({**json.loads(row.task_payload), "solution": solution}))


def test_a_stored_solution_stands_in_the_prompt_and_a_missing_one_is_counted() -> None:
    (row,) = play(["right a", "right a"])[0]

    assert hindsight([row], **SOLVED) == {row.trajectory_id: "no_demonstration"}
    (found,) = hindsight([with_solution(row, "right right")], **SOLVED).values()
    assert len(found.prompt_token_ids) == len(row.prompt_token_ids) + 2
    assert found.source_trajectory_id == row.trajectory_id


def test_an_own_success_of_an_earlier_iteration_is_a_demonstration() -> None:
    (good,), (bad, *_) = play(["right a", "right a"])[0], play(["down b", "? a b ?", "down b"], sample=1)[0]
    own: dict[str, Any] = {**SOLVED, "demonstration": {"source": "own_success"}}

    (found,) = hindsight([bad], earlier=[bad, good], **own).values()
    assert found.source_trajectory_id == good.trajectory_id
    assert hindsight([bad], earlier=[bad], **own) == {bad.trajectory_id: "no_demonstration"}
    assert hindsight([good, bad], **own)[bad.trajectory_id] == "no_demonstration"  # not of this iteration


def test_a_demonstration_that_holds_the_answer_to_a_held_out_task_is_refused() -> None:
    answer = "right " * 6 + "down down"
    (row,) = play(["right a", "right a"])[0]
    kept = Task("kept", "lake", "frozen_lake", {"solution": answer})

    with pytest.raises(InputError, match="holds the whole solution of a held-out task"):
        hindsight([with_solution(row, f"up {answer} up")], held_out=[kept], **SOLVED)
    same = replace(kept, task_id=row.task_id)
    with pytest.raises(InputError, match="is of the held-out task corner"):
        hindsight([with_solution(row, "up")], held_out=[same], **SOLVED)


def test_for_comparison_the_text_is_of_another_task_or_the_prompt_is_that_of_the_attempt() -> None:
    (row,) = play(["right a", "right a"])[0]
    one = with_solution(row, "right right")
    two = replace(with_solution(row, "down"), trajectory_id="two", task_id="other")

    shuffled = hindsight([one, two], block="shuffled", **SOLVED)
    assert shuffled[row.trajectory_id].source_trajectory_id == "two"
    assert shuffled["two"].source_trajectory_id == row.trajectory_id
    assert hindsight([one], block="shuffled", **SOLVED) == {row.trajectory_id: "no_other_task"}
    empty = hindsight([one, replace(row, trajectory_id="none")], block="empty", **SOLVED)
    assert empty[row.trajectory_id].prompt_token_ids == row.prompt_token_ids
    assert empty["none"] == "no_demonstration"  # the same attempts are scored as with their own texts


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
        ({"self_distillation": {"template": "{{ answer }}"}}, "unknown variable 'answer'"),
    ],
)
def test_hindsight_that_cannot_be_had_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunConfig.model_validate({**SMALL, "self_distillation": True, **changes})

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.stages.training.advantages import averaged_subgroups, groups_by_role, training_sequences
from storage.errors import InputError
from storage.tables.trajectories import Trajectory, read_trajectories, write_trajectories
from tests.erl_pipeline.episodes.script import play


def rows(
    subgroup: str | None, *rewards: float, group: str = "g", role: str = "first_attempt"
) -> list[Trajectory]:
    """Trajectories of one group and subgroup, one for each reward."""
    row = play(["right a", "right a"])[0][0]
    return [replace(row, reward=each, group_id=group, subgroup=subgroup, role=role) for each in rewards]


GUIDED, FREE = rows("guided", 1.0, 1.0, 0.0, 1.0), rows("free", 0.0, 0.0, 1.0, 0.0)


def advantages(trajectories: list[Trajectory], **objective: str) -> list[float]:
    sequences = training_sequences(trajectories, ObjectiveConfig.model_validate(objective))
    return [sequence.advantage for sequence in sequences]


def test_by_default_the_halves_of_a_group_are_compared_apart() -> None:
    """Guided: mean .75, standard deviation .5. Free: mean .25, the same deviation."""
    split = advantages([*GUIDED, *FREE])
    assert split == pytest.approx([0.5, 0.5, -1.5, 0.5, -0.5, -0.5, 1.5, -0.5], abs=1e-5)
    centred = advantages([*GUIDED, *FREE], advantage_normalization="mean")
    assert centred == [0.25, 0.25, -0.75, 0.25, -0.25, -0.25, 0.75, -0.25]


def test_a_group_is_compared_as_a_whole_where_the_objective_says_so() -> None:
    together = advantages([*GUIDED, *FREE], advantages_per="group", advantage_normalization="mean")
    assert together == [0.5, 0.5, -0.5, 0.5, -0.5, -0.5, 0.5, -0.5]


def test_what_a_limit_cut_off_counts_in_its_group_and_is_not_trained() -> None:
    whole, cut = rows(None, 1.0, 0.0)
    objective = ObjectiveConfig(truncated="leave_out", advantage_normalization="mean")
    found = training_sequences([whole, replace(cut, truncated=True)], objective)
    assert [(each.advantage, each.weight) for each in found] == [(0.5, 1.0), (-0.5, 0.0)]


def test_long_answers_lose_reward_before_they_are_compared() -> None:
    """Five tokens lose half of the reward, two tokens nothing."""
    long, short = rows(None, 1.0, 1.0)
    tokens = (0,) * 5
    long = replace(long, response_token_ids=tokens, response_mask=(1,) * 5, behaviour_logprobs=(-1.0,) * 5)
    short = replace(
        short, response_token_ids=tokens[:2], response_mask=(1, 1), behaviour_logprobs=(-1.0, -1.0)
    )
    objective = ObjectiveConfig.model_validate(
        {"length_penalty": {"limit": 7, "margin": 4}, "advantage_normalization": "mean"}
    )
    assert [each.advantage for each in training_sequences([long, short], objective)] == [-0.25, 0.25]


def test_a_subgroup_of_equal_rewards_or_of_one_has_no_advantage() -> None:
    equal, lone = rows("guided", 1.0, 1.0), rows("free", 0.0)
    assert advantages([*equal, *lone], advantages_per="subgroup") == [0.0, 0.0, 0.0]
    # Without subgroups the setting changes nothing.
    assert advantages(rows(None, 1.0, 0.0), advantages_per="subgroup") == advantages(rows(None, 1.0, 0.0))


def test_halves_of_a_group_are_averaged_however_many_tokens_they_have() -> None:
    """Guided attempts have 4 tokens and free ones 6; those of group `h`, with equal rewards, do not count.
    With weights of 10 / (2 x 4) and 10 / (2 x 6) each half has 5 of 10 tokens. A half without an advantage
    keeps its share: the other has the weight 4 / (2 x 4)."""
    guided = [_with_tokens(row, 2) for row in rows("guided", 1.0, 0.0)]
    free = [_with_tokens(row, 3) for row in rows("free", 1.0, 0.0)]
    still = [_with_tokens(row, 9) for row in rows("free", 1.0, 1.0, group="h")]
    assert _weights([*guided, *free, *still]) == pytest.approx([10 / 8] * 2 + [10 / 12] * 4)
    assert _weights([*guided, *still]) == pytest.approx([4 / 8] * 2 + [1.0] * 2)
    # Roles are apart, and one that is not split keeps its weights.
    reflections = rows(None, 1.0, 0.0, role="reflection", group="r")
    assert _weights([*guided, *free, *reflections]) == pytest.approx([10 / 8] * 2 + [10 / 12] * 2 + [1.0] * 2)
    assert _weights([*guided, *free], loss_normalization="sequence_mean") == [1.0] * 4
    # Where rows without an advantage count in the mean, they count in that of their half too.
    whole = [*guided, *free, *still]
    assert _weights(whole, normalizer="all_rows") == pytest.approx([28 / (2 * 4)] * 2 + [28 / (2 * 24)] * 4)


def test_a_half_with_equal_rewards_has_its_share_where_kl_is_in_the_reward() -> None:
    """Its tokens get their advantages later."""
    guided = [_with_tokens(row, 2) for row in rows("guided", 1.0, 0.0)]
    still = [_with_tokens(row, 3) for row in rows("free", 1.0, 1.0)]
    with_kl = _weights([*guided, *still], kl_in="reward", kl_coefficient="0.1")
    assert with_kl == pytest.approx([10 / 8] * 2 + [10 / 12] * 2)


def _with_tokens(row: Trajectory, count: int) -> Trajectory:
    ones = (1,) * count
    return replace(row, response_token_ids=ones, response_mask=ones, behaviour_logprobs=(-1.0,) * count)


def _weights(given: list[Trajectory], **changes: str) -> list[float]:
    objective = ObjectiveConfig.model_validate({"subgroup_losses": "averaged", **changes})
    return [row.weight for row in averaged_subgroups(given, training_sequences(given, objective), objective)]


def test_each_turn_is_compared_with_the_same_turn_of_the_others() -> None:
    """Turns of two tokens and one, then of one each, with a token of the environment between them. Rewards
    from the first turn on are 1 + 0 = 1, 0 + 2 = 2 and 0, of a single turn; from the second on they are 0 and
    2."""
    first, second, third = rows(None, 1.0, 2.0, 0.0)
    found = training_sequences(
        [
            _with_turns(first, (1, 1, 0, 1), (1.0, 0.0)),
            _with_turns(second, (1, 0, 1), (0.0, 2.0)),
            _with_turns(third, (1, 1), (0.0,)),
        ],
        ObjectiveConfig(credit="turn", advantage_normalization="mean"),
    )
    assert [each.trained_advantages.tolist() for each in found] == [
        pytest.approx([0.0, 0.0, -1.0]),  # 1 - mean(1, 2, 0) and 0 - mean(0, 2)
        pytest.approx([1.0, 1.0]),
        pytest.approx([-1.0, -1.0]),
    ]
    # What is recorded is the mean over tokens.
    assert [each.advantage for each in found] == pytest.approx([-1 / 3, 1.0, -1.0])


def test_turns_that_were_taken_over_count_in_the_number_of_a_turn() -> None:
    """One second attempt begins at turn 2 of the first, another plays both turns; each turn gives .5."""
    later, whole = rows(None, 1.0, 1.0, role="second_attempt")
    kept = _with_turns(later, (0, 0, 1, 1), (0.5,))
    given = [
        replace(kept, metrics=json.dumps({"kept_turns": 1.0})),
        _with_turns(whole, (1, 0, 1), (0.5, 0.5)),
    ]
    by_turn = ObjectiveConfig(credit="turn", advantage_normalization="mean")
    assert [each.trained_advantages.tolist() for each in training_sequences(given, by_turn)] == [
        [0, 0],
        [0, 0],
    ]


@pytest.mark.parametrize(("one", "other"), [((0.1, 0.2), (0.3,)), ((33.3, 66.7), (100.0,))])
def test_equal_returns_give_no_advantage_after_they_were_stored(
    tmp_path: Path, one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    """Rewards of turns are stored in 32 bits, in which .1 + .2 is not .3."""
    first, second = rows(None, 1.0, 1.0)
    given = [_with_turns(first, (1, 0, 1), one), _with_turns(second, (1,), other)]
    write_trajectories(tmp_path / "rows.parquet", given)
    found = training_sequences(read_trajectories([tmp_path / "rows.parquet"]), ObjectiveConfig(credit="turn"))
    assert found[0].trained_advantages[0] == found[1].trained_advantages[0] == 0.0


def test_turns_without_rewards_of_their_own_are_one() -> None:
    """As of an agent, or of a row that an earlier version wrote."""
    plain = [replace(row, turn_rewards=None) for row in rows(None, 1.0, 0.0)]
    assert advantages(plain, credit="turn") == advantages(plain)
    split = _with_turns(plain[0], (1, 1), (1.0, 0.0))
    with pytest.raises(InputError, match="rewards of 2 turns, and 1 runs of sampled tokens"):
        advantages([split, plain[1]], credit="turn")


def test_a_group_has_an_advantage_where_one_of_its_turns_has_one() -> None:
    early, late = rows(None, 1.0, 1.0)
    given = [
        _with_turns(early, (1, 0, 1), (1.0, 0.0)),
        _with_turns(late, (1, 0, 1), (0.0, 1.0)),
    ]
    assert groups_by_role(given, ObjectiveConfig())["zero_advantage_groups_first_attempt"] == 1
    by_turn = ObjectiveConfig(credit="turn")
    assert groups_by_role(given, by_turn)["zero_advantage_groups_first_attempt"] == 0


def _with_turns(row: Trajectory, mask: tuple[int, ...], rewards: tuple[float, ...]) -> Trajectory:
    return replace(
        row,
        response_token_ids=(1,) * len(mask),
        response_mask=mask,
        behaviour_logprobs=tuple(-1.0 * bit for bit in mask),
        turn_rewards=rewards,
    )


def test_groups_without_advantage_are_counted_by_role() -> None:
    """Reflections: rewards differ in `r`, `s` has only one, and they are equal in `t`. As subgroups, the
    guided half of `g` has equal rewards and the free half has not; together they are one group with different
    rewards."""
    reflections = [
        *rows(None, 1.0, 0.0, group="r", role="reflection"),
        *rows(None, 1.0, group="s", role="reflection"),
        *rows(None, 0.0, 0.0, group="t", role="reflection"),
    ]
    given = [*rows("guided", 1.0, 1.0), *FREE, *reflections]
    of_reflections = {"groups_reflection": 3, "zero_advantage_groups_reflection": 2}
    assert groups_by_role(given, ObjectiveConfig(advantages_per="group")) == {
        "groups_first_attempt": 1,
        "zero_advantage_groups_first_attempt": 0,
        **of_reflections,
    }
    assert groups_by_role(given, ObjectiveConfig()) == {
        "groups_first_attempt": 2,
        "zero_advantage_groups_first_attempt": 1,
        **of_reflections,
    }


DRAWN = [
    ("guided", 1.0),
    ("guided", 1.0),
    ("guided", 0.0),
    ("guided", 1.0),
    ("free", 0.0),
    ("free", 0.0),
    ("free", 1.0),
]


def of_halves(objective: ObjectiveConfig) -> list[float]:
    reflection = play(["down b", "? a b ?", "right a", "right a"])[0][1]
    given = [replace(reflection, subgroup=subgroup, reward=reward) for subgroup, reward in DRAWN]
    return [sequence.advantage for sequence in training_sequences(given, objective)]


def test_by_default_seeing_memory_is_no_merit_of_the_reflection() -> None:
    """The means of the halves are .75 and 1/3, so a reward of 1 is compared with its own half."""
    found = of_halves(ObjectiveConfig(advantage_normalization="mean"))
    assert [round(each, 4) for each in found] == [0.25, 0.25, -0.75, 0.25, -0.3333, -0.3333, 0.6667]


def test_the_whole_group_can_be_compared() -> None:
    """The mean is 4/7."""
    found = of_halves(ObjectiveConfig(advantage_normalization="mean", advantages_per="group"))
    assert [round(each, 4) for each in found] == [0.4286, 0.4286, -0.5714, 0.4286, -0.5714, -0.5714, 0.4286]

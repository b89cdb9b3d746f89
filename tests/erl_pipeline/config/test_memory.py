from __future__ import annotations

import pytest
from pydantic import ValidationError

from erl_pipeline.config.memory import MemoryConfig, RetrievalSettings, require_subgroups


def retrieval(**settings: object) -> RetrievalSettings:
    return MemoryConfig.model_validate(settings).retrieval


def test_what_is_off_is_in_no_recipe() -> None:
    off = {"credit_weight": 0.0, "support_weight": 0.0, "retrieval_penalty": 0.0}
    assert retrieval(**off, candidates=9) == retrieval(**off)
    assert retrieval(candidates=9) != retrieval()
    assert (retrieval(**off).candidates, retrieval().fallback) == (None, None)
    assert retrieval(max_entries=5, evict="lowest_credit", merge_similarity=0.9) == retrieval()


def test_the_newest_are_a_fallback_for_what_is_not_similar_enough() -> None:
    with pytest.raises(ValidationError, match="set min_similarity too"):
        MemoryConfig(fallback="recent")
    guide = MemoryConfig(top_k=3, max_entries=1000, min_similarity=0.5, fallback="recent").retrieval
    assert (guide.top_k, guide.min_similarity, guide.fallback) == (3, 0.5, "recent")


@pytest.mark.parametrize(
    ("group_size", "withhold", "possible"),
    [
        (8, 0.5, True),
        (4, 0.5, True),
        (3, 0.5, False),  # one or two without memory
        (2, 0.5, False),
        (8, 0.25, True),
        (8, 0.1, False),  # none or one
        (8, 0.9, False),
        (2, 0.0, True),
        (2, 1.0, True),
    ],
)
def test_a_subgroup_of_one_is_refused(group_size: int, withhold: float, possible: bool) -> None:
    if possible:
        require_subgroups(retrieval(withhold=withhold), group_size)
        return
    with pytest.raises(ValueError, match=rf"rollouts.group_size: {group_size}; with .* withhold: {withhold}"):
        require_subgroups(retrieval(withhold=withhold), group_size)


def test_memory_is_withdrawn_over_iterations() -> None:
    """Four of eight samples see memory, then .8, .6, .4 and .2 of four, rounded down: 3, 2, and two until the
    end."""
    found = retrieval(withdrawal={"first": 10, "last": 14})
    see = [8 * (1 - found.withheld_at(iteration, 8)) for iteration in range(9, 16)]
    assert see == pytest.approx([4, 3, 2, 2, 2, 0, 0])


def test_no_sample_alone_goes_without_memory() -> None:
    """All eight see it, then 7/8 of them, 6/8 and so on; seven would leave one alone."""
    found = retrieval(withhold=0.0, withdrawal={"first": 1, "last": 8})
    see = [8 * (1 - found.withheld_at(iteration, 8)) for iteration in range(1, 9)]
    assert see == pytest.approx([6, 6, 5, 4, 3, 2, 2, 0])


def test_of_three_samples_none_sees_memory_alone() -> None:
    found = retrieval(withhold=0.0, withdrawal={"first": 1, "last": 4})
    assert [3 * (1 - found.withheld_at(iteration, 3)) for iteration in range(1, 5)] == [0, 0, 0, 0]
    assert 3 * (1 - found.withheld_at(0, 3)) == 3


def test_withdrawal_and_replay_are_refused_together() -> None:
    found = retrieval(withdrawal={"first": 1, "last": 4})
    require_subgroups(found, 8)
    with pytest.raises(ValueError, match=r"memory\.withdrawal with replay"):
        require_subgroups(found, 8, replays=True)


def test_a_withdrawal_ends_after_it_begins() -> None:
    with pytest.raises(ValidationError, match="allowed is more than first, 5"):
        retrieval(withdrawal={"first": 5, "last": 5})


def test_replay_takes_an_episode_from_the_subgroups() -> None:
    """Of four episodes two see no entry; of three it would be one and a half."""
    require_subgroups(retrieval(withhold=0.5), 4)
    with pytest.raises(ValueError, match=r"group_size: 4; with .* withhold: 0.5 and replay a subgroup"):
        require_subgroups(retrieval(withhold=0.5), 4, replays=True)

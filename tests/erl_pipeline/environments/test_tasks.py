from __future__ import annotations

from erl_pipeline.environments.tasks import hashed_split


def test_the_split_of_a_problem_depends_on_its_text_alone() -> None:
    # SHA-256 of "a" begins with 0xca = 202, of "e" with 0x3f = 63, of "d" with 0x18 = 24: modulo 4 that is
    # 2, 3 and 0.
    assert [hashed_split(problem, test=True) for problem in "aed"] == ["held_out", "test", "training"]
    assert [hashed_split(problem, test=False) for problem in "aed"] == ["held_out", "training", "training"]

"""The list of datasets that qualify, and the examination that it comes from."""

from __future__ import annotations

from qualify.reasoning_gym_datasets import (
    Finding,
    examine,
    hostile_answers,
    list_text,
    wrong_answers,
)

from erl_pipeline.environments.reasoning_gym.library import qualification


def test_every_dataset_of_the_library_is_in_the_list_once() -> None:
    from reasoning_gym.factory import DATASETS

    listed = qualification()
    assert listed.qualified.isdisjoint(listed.refused)
    assert {*listed.qualified, *listed.refused} == set(DATASETS) - {"composite"}
    assert listed.numeric <= listed.qualified


def test_the_examination_finds_what_the_list_says() -> None:
    listed = qualification()
    assert examine("leg_counting") == Finding("leg_counting", "", numeric=True, raises=0)
    assert "leg_counting" in listed.numeric
    # It sorts, but its scorer accepts nan in place of any number.
    assert examine("number_sorting").refused == listed.refused["number_sorting"]


def test_wrong_answers_are_made_of_the_right_one() -> None:
    assert [wrong for _, wrong in wrong_answers("12", ["12", "5"])] == [
        "13", "11", "127", "13, 12", "12 or 13", "-12", "nan", "13", "2121x", "5",
        "12, 5", "12\n5",
    ]  # fmt: skip
    assert [wrong for _, wrong in wrong_answers("5 days", [])][-1] == "5 weeks"
    assert [wrong for _, wrong in wrong_answers("[[0,1],[1,0]]", [])][-1] == "[[0, 1, 7], [1, 0, 7], [7]]"
    assert len(hostile_answers()) == len(set(hostile_answers())) == 200


def test_the_list_is_written_as_it_is_read() -> None:
    findings = [Finding("a", "", numeric=True, raises=2), Finding("b", 'gives "1"', numeric=False, raises=0)]
    text = list_text(findings)
    assert 'qualified = [\n    "a",\n]\n' in text
    assert 'raises = [\n    "a",\n]\n' in text
    assert '[refused]\nb = "gives \\"1\\""\n' in text

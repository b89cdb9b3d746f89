from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.config.plugins import plugins
from erl_pipeline.plan.source_tree import SourceTree
from tests.stage_versions import (
    StageCode,
    VersionFile,
    begin_versions,
    file_text,
    find_stages,
    in_tree,
    problem,
    raise_version,
    read_file,
    record,
    stage_codes,
)

UPDATE = StageCode("update", "house.update.compute", 3, "u", {"house.update": "u1", "house.shared": "s1"})
TUNE = StageCode("tune", "house.tune.compute", 1, "t", {"house.tune": "t1", "house.shared": "s1"})


@pytest.fixture(scope="module")
def codes() -> list[StageCode]:
    """The code of all stages as it is now."""
    return stage_codes(in_tree(), find_stages())


def test_every_stage_has_the_version_of_its_code(codes: list[StageCode]) -> None:
    file = read_file()
    problems = [said for code in codes if (said := problem(code, file))]
    assert not problems, "\n".join(problems)
    assert {code.compute for code in codes} == file.stages.keys(), "versions.toml names stages that are gone"


def test_every_stage_can_be_sent_to_another_process() -> None:
    for stage in find_stages():
        assert pickle.loads(pickle.dumps(stage)) == stage


def test_a_stage_that_trains_reaches_the_trainer_and_none_reaches_methods_or_environments(
    codes: list[StageCode],
) -> None:
    reached = {code.name: set(code.modules) for code in codes}
    assert "erl_pipeline.trainers.local.optimizer" in reached["update_policy"]
    assert "erl_pipeline.trainers.local.optimizer" not in reached["prepare_tasks"]
    plugged = {
        package
        for group in ("methods", "environments")
        for each in plugins(group).found.values()
        for package in each.packages
    }
    # The extractor's stages and episodes with lessons share these prompts; an edit counts for both.
    assert plugged & set().union(*reached.values()) == {"erl_pipeline.stages.extractor.prompts"}


def test_stages_reach_few_modules_and_none_that_locks_waits_serves_pages_or_plans(
    codes: list[StageCode],
) -> None:
    mean = sum(len(code.modules) for code in codes) / len(codes)
    print(f"{len(codes)} stages reach {mean:.1f} modules on average")
    assert mean <= 65
    reached = set().union(*(code.modules for code in codes))
    outside = (
        "storage.runs.",
        "storage.upkeep.",
        "erl_pipeline.views.",
        "erl_pipeline.runs.",
        "erl_pipeline.plan.planner",
        "erl_pipeline.plan.execution",
        "erl_pipeline.config.shown",
    )
    assert [module for module in sorted(reached) if module.startswith(outside)] == []


def _begun() -> VersionFile:
    return begin_versions(VersionFile({}, {}), [UPDATE, TUNE], [UPDATE, TUNE])


def _edited(code: StageCode, module: str) -> StageCode:
    return replace(code, fingerprint="edited", modules={**code.modules, module: "edited"})


def test_changed_code_under_the_same_version_is_named_with_the_two_ways_out() -> None:
    file = _begun()
    assert problem(UPDATE, file) is None
    said = problem(_edited(UPDATE, "house.shared"), file) or ""
    assert "stage update (house.update.compute) still has version 3" in said
    assert "has changed: house.shared." in said
    assert "--bump house.update.compute" in said
    assert "--record house.update.compute" in said


def test_a_change_that_moves_no_byte_is_recorded_for_each_stage_that_it_reaches() -> None:
    update, tune = _edited(UPDATE, "house.shared"), _edited(TUNE, "house.shared")
    once = record(_begun(), [update, tune], [update], "a name")
    assert problem(update, once) is None
    assert "has changed: house.shared." in (problem(tune, once) or "")
    both = record(once, [update, tune], [tune], "a name")
    assert problem(tune, both) is None
    assert "has changed" in (problem(UPDATE, both) or ""), "code that is put back is recorded again"
    assert both.modules["house.shared"] == "edited"


def test_with_a_new_version_earlier_code_is_no_longer_right() -> None:
    newer = replace(_edited(UPDATE, "house.update"), version=4)
    assert "has version 4, and versions.toml knows 3" in (problem(newer, _begun()) or "")
    with pytest.raises(ValueError, match="--bump"):
        record(_begun(), [newer, TUNE], [newer], "a name")
    file = begin_versions(_begun(), [newer, TUNE], [newer])
    assert problem(newer, file) is None
    assert problem(replace(UPDATE, version=4), file) is not None


def test_a_stage_that_is_gone_is_left_out() -> None:
    assert begin_versions(_begun(), [TUNE], [TUNE]).stages.keys() == {TUNE.compute}


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = record(
        _begun(), [_edited(UPDATE, "house.update"), TUNE], [_edited(UPDATE, "house.update")], 'a "name"'
    )
    (tmp_path / "versions.toml").write_text(file_text(file))
    assert read_file(tmp_path / "versions.toml") == file


def test_a_version_is_raised_where_the_source_has_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "A = Stage(\n    name='a',\n    version=9,\n    compute=other,\n)\n"
        "B = Stage(name='b', version=3, compute=compute)\n"
    )
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "update.py").write_text(source)
    raised = raise_version(UPDATE, SourceTree({"house": tmp_path / "house"}))
    assert raised == replace(UPDATE, version=4)
    assert (tmp_path / "house" / "update.py").read_text() == source.replace("version=3", "version=4")
    assert capsys.readouterr().out == "house/update.py:6: update has version 4\n"

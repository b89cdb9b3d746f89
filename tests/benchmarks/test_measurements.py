"""The measuring code of the benchmarks: no server, no model."""

import subprocess
from pathlib import Path

import pytest
from measurements import (
    Column,
    alternate,
    argument_parser,
    as_markdown,
    as_text,
    describe_machine,
    median_and_range,
    median_ratio,
    parse_arguments,
    rewrite_section,
    table,
    uncommitted,
)

RUNS = {"ours": [{"speed": 10.0}, {"speed": 30.0}, {"speed": 24.0}], "theirs": [{"speed": 5.0}] * 3}


def test_a_figure_is_shown_as_median_least_and_most() -> None:
    assert median_and_range([4.0, 1.0, 9.0], 1) == "4.0 (1.0 to 9.0)"


def test_ratio_is_the_median_over_rounds_not_the_ratio_of_medians() -> None:
    theirs = [{"speed": 5.0}, {"speed": 6.0}, {"speed": 24.0}]
    # 10/5 = 2, 30/6 = 5, 24/24 = 1; the ratio of the medians would be 24/6 = 4.
    assert median_ratio({"ours": RUNS["ours"], "theirs": theirs}, "speed", "ours", "theirs") == 2.0


def test_table_shows_each_contender_once_with_its_ratio() -> None:
    column = Column("speed", "km/h", 1, 3.6)
    rows = table(RUNS, [column], column, "ours")
    assert rows == [
        ["contender", "km/h", "ours / it, km/h"],
        ["ours", "86.4 (36.0 to 108.0)", ""],
        ["theirs", "18.0 (18.0 to 18.0)", "4.80"],
    ]
    assert as_markdown(rows).splitlines()[1] == "|---|---|---|"
    assert as_text(rows).splitlines()[1] == "ours       86.4 (36.0 to 108.0)"


def test_a_figure_that_a_contender_does_not_have_is_left_blank() -> None:
    runs = {"ours": [{"speed": 1.0, "memory": 2.0}], "theirs": [{"speed": 1.0}]}
    rows = table(runs, [Column("memory", "memory", 0)], Column("speed", "speed"), "ours")
    assert [row[1] for row in rows[1:]] == ["2 (2 to 2)", ""]


def test_contenders_alternate_in_processes_of_their_own_and_turn_round(tmp_path: Path) -> None:
    script, log = tmp_path / "contender.py", tmp_path / "log"
    script.write_text(
        "import json, os, sys\n"
        "log, _, name, _, figures = sys.argv[1:]\n"
        "open(log, 'a').write(name)\n"
        "json.dump({'process': os.getpid()}, open(figures, 'w'))\n"
    )
    runs = alternate(["a", "b"], 3, [str(log)], str(script))
    assert log.read_text() == "abbaab"
    assert len({one["process"] for figures in runs.values() for one in figures}) == 6


def test_a_contender_that_fails_ends_the_benchmark_with_what_it_said(tmp_path: Path) -> None:
    script = tmp_path / "contender.py"
    script.write_text("raise SystemExit('no model here')")
    with pytest.raises(RuntimeError, match=r"a failed with status 1:\nno model here"):
        alternate(["a"], 1, [], str(script))


def test_only_the_text_between_the_markers_is_rewritten() -> None:
    document = "head\n<!-- begin speed -->\nold\n<!-- end speed -->\ntail\n"
    rewritten = rewrite_section(document, "speed", "new\n")
    assert rewritten == "head\n<!-- begin speed -->\nnew\n<!-- end speed -->\ntail\n"
    assert rewrite_section(rewritten, "speed", "new") == rewritten
    with pytest.raises(ValueError, match="begin other"):
        rewrite_section(document, "other", "new")


def test_the_readme_has_a_section_for_every_script() -> None:
    readme = (Path(__file__).parents[2] / "benchmarks/README.md").read_text()
    for name in ("rollout_speed", "update_speed", "iteration_speed", "handover_speed"):
        rewrite_section(readme, name, "")


def test_the_machine_is_described_with_the_versions_asked_for() -> None:
    machine = describe_machine(2, ["torch"])
    assert machine["threads"] == 2
    assert str(machine["torch"])[0].isdigit()
    assert float(machine["memory_gib"]) > 0


def test_a_result_that_names_no_clean_commit_is_refused_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("measurements.uncommitted", lambda _: "storage/x.py")
    parser = argument_parser("What it measures.")
    assert not parse_arguments(parser, []).write
    assert parse_arguments(parser, ["--write", "--allow-dirty"]).write
    with pytest.raises(SystemExit):
        parse_arguments(parser, ["--write"])
    assert "changes that are not committed (storage/x.py); commit them first" in capsys.readouterr().err


def test_changes_are_those_of_code_and_not_of_results(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)

    assert uncommitted(tmp_path) == f"{tmp_path} is no git checkout"
    git("init")
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "benchmarks/results/speed.json").write_text("{}")
    assert uncommitted(tmp_path) == ""
    (tmp_path / "benchmarks/speed.py").write_text("")
    assert uncommitted(tmp_path) == "benchmarks/speed.py"

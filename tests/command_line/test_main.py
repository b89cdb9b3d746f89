from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from command_line.main import COMMANDS, load_command
from storage.runs.run import RunStore
from tests.command_line.invoke import SMALL, FinishedRun, invoke


def test_the_command_starts_without_importing_what_is_heavy() -> None:
    heavy = {"torch", "transformers", "prefect", "lancedb", "polars", "pyarrow", "matplotlib"}
    code = f"import sys, command_line.main; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


HEAVY = {
    *("torch", "transformers", "sentence_transformers", "vllm", "ray", "prefect", "lancedb", "fastapi"),
    *("polars", "pyarrow", "numpy", "yaml", "jinja2", "aiohttp", "httpx"),
    *("erl_pipeline.config", "erl_pipeline.plan", "erl_pipeline.runs", "erl_pipeline.stages"),
    *("erl_pipeline.evaluation", "erl_pipeline.policies", "storage.lineage", "storage.tables"),
}
"""Modules that neither a help text nor a completion needs."""


def printed_without(heavy: set[str], code: str, **environment: str) -> str:
    """What code prints in a process of its own, which must import none of these modules."""
    look = f"print(*sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"import atexit, sys\natexit.register(lambda: {look})\n{code}"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == "\n"
    return done.stdout


def test_every_command_shows_its_help_without_importing_what_does_its_work() -> None:
    # Nor does a help text need pydantic, fsspec and what reads a store.
    heavy = {*HEAVY, "pydantic", "fsspec", "storage.runs.run", "storage.artifacts.store"}
    code = "from command_line.main import command_tree; print(*command_tree().commands)"
    assert printed_without(heavy, code).split() == list(COMMANDS)


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["train", "--dry"], "--dry-run"),
        (["lineage", "tra"], "trained-on"),
        (["memory", "search", "ru"], "run"),
        (["gc", "--run", "ru"], "run"),
    ],
)
def test_a_shell_completes_without_importing_what_does_the_work(
    words: list[str], completed: str, tmp_path: Path
) -> None:
    RunStore(str(tmp_path)).create("run", {})
    output = printed_without(
        HEAVY,
        "from command_line.main import main; main()",
        _ERL_PIPELINE_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(["erl-pipeline", *words]),
        COMP_CWORD=str(len(words)),
        ERL_PIPELINE_STORE=str(tmp_path),
    )
    assert output.split() == [completed]


def test_the_programs_help_lists_every_command_that_can_be_loaded() -> None:
    shown = " ".join(invoke("--help").output.replace("│", " ").split())
    for name, (_, line) in COMMANDS.items():
        assert f" {name} {line} " in shown
        assert load_command(name).help


@pytest.mark.parametrize("words", [["status", "none"], ["report", "none"], ["lineage", "verify", "none"]])
def test_an_unknown_run_is_one_line_and_status_2(finished: FinishedRun, words: list[str]) -> None:
    result = invoke(*words, "--store", finished.store)
    assert result.status == 2
    assert result.errors == f"error: no run none in store {finished.store}. Its runs: small.\n"
    assert result.output == ""


def test_a_run_of_another_version_is_refused_with_its_strange_settings(tmp_path: Path) -> None:
    RunStore(str(tmp_path)).create("old", {"name": "old", "iterations": 1, "speed": 3})
    result = invoke("status", "old", "--store", tmp_path)
    assert result.status == 2
    assert "run old was begun with settings of another version:" in result.errors
    assert "speed: unknown key; did you mean seed?" in result.errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "error: missing argument 'CONFIG'. See: erl-pipeline train --help\n"),
        (["status", "run", "--bad"], "error: no such option: --bad. See: erl-pipeline status --help\n"),
        (
            ["lineage", "shaw"],
            "error: no such command 'shaw'. Did you mean 'show'? See: erl-pipeline lineage --help\n",
        ),
        (
            ["episodes", "list", "run", "--outcome", "helpd"],
            "error: invalid value for '--outcome': 'helpd' is not one of 'solved', 'helped', 'failed', "
            "'not_scored'. See: erl-pipeline episodes list --help\n",
        ),
        (
            ["cluster", "doctor", "--address", "x"],
            "error: --address: 'x'; allowed is auto, local or HOST:PORT, such as 10.0.0.1:6379\n",
        ),
    ],
)
def test_usage_errors_are_one_line_and_status_2(words: list[str], said: str) -> None:
    result = invoke(*words)
    assert (result.status, result.errors, result.output) == (2, said, "")


def test_the_version_is_that_of_the_package() -> None:
    result = invoke("--version")
    assert (result.status, result.output) == (0, f"erl-pipeline {version('erl-pipeline')}\n")


def test_a_shell_completes_names_of_runs(finished: FinishedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    words = f"erl-pipeline status --store {finished.store} sm"
    monkeypatch.setenv("_ERL_PIPELINE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", "4")
    assert invoke().output.split() == ["small"]


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "file").write_text("no folder")
    result = invoke("train", tmp_path / "small.yaml", "--store", tmp_path / "file" / "store", "--no-prefect")
    assert result.status == 2
    assert "error: " in result.errors
    assert str(tmp_path / "file" / "store") in result.errors
    assert "Traceback" not in result.errors


@pytest.mark.parametrize("words", [["runs", "list"], ["ui"], ["status", "run"], ["gc"]])
def test_a_command_that_only_reads_refuses_a_store_that_does_not_exist(
    words: list[str], tmp_path: Path
) -> None:
    store = tmp_path / "nowhere"
    result = invoke(*words, "--store", store)
    said = f"error: no store at {store}; --store or ERL_PIPELINE_STORE names another\n"
    assert (result.status, result.errors, result.output) == (2, said, "")
    assert not store.exists()


def test_the_store_may_come_from_the_environment(
    finished: FinishedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERL_PIPELINE_STORE", str(finished.store))
    assert invoke("status", "small", "--json").json["store"] == str(finished.store)
    assert invoke("status", "small", "--store", "/nowhere").status == 2


def run_program(words: str, store: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program in a shell, which can redirect or close its output."""
    return subprocess.run(
        f"'{sys.executable}' -m command_line.main {words}",
        shell=True,
        env={**os.environ, "ERL_PIPELINE_STORE": str(store), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("redirected", "said"), [(">/dev/full", "No space left on device"), (">&-", "standard output is closed")]
)
def test_output_that_cannot_be_written_is_one_line_and_status_2(
    tmp_path: Path, redirected: str, said: str, unbuffered: str
) -> None:
    RunStore(str(tmp_path)).create("run", {})
    done = run_program(f"runs list {redirected}", tmp_path, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (2, f"error: the output cannot be written: {said}\n")


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    RunStore(str(tmp_path)).create("run", {})
    assert run_program("runs list | true", tmp_path).stderr == ""


def test_closed_standard_error_disturbs_nothing(tmp_path: Path) -> None:
    RunStore(str(tmp_path)).create("run", {})
    assert run_program("runs list 2>&-", tmp_path).returncode == 0
    failed = run_program("status none 2>&-", tmp_path)
    assert (failed.returncode, failed.stdout) == (2, "")


def test_characters_that_the_output_cannot_hold_are_named(tmp_path: Path) -> None:
    RunStore(str(tmp_path)).create("run", {})
    done = run_program("runs note run é", tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xe9" in done.stdout
    described = run_program("runs show run --json", tmp_path, PYTHONIOENCODING="ascii").stdout
    assert json.loads(described)["note"] == "é"


def press_ctrl_c(name: str) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def press_ctrl_c_in_a_library(name: str) -> None:
    try:
        press_ctrl_c(name)
    except KeyboardInterrupt:
        raise ValueError("a class could not be made") from None


@pytest.fixture
def stopped_by_ctrl_c() -> Iterator[None]:
    """As in a terminal: a process that a shell has started in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("stopped_by_ctrl_c")
@pytest.mark.parametrize("load", [press_ctrl_c, press_ctrl_c_in_a_library])
def test_ctrl_c_while_a_command_is_loaded_is_one_line(
    load: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("command_line.main.load_command", load)
    told = invoke("compare", "file")
    assert (told.status, told.errors, told.output) == (130, "Interrupted.\n", "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

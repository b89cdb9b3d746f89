"""The example packages, installed into a folder of their own, and `erl-pipeline` where it finds them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests import forked
from tests.command_line.invoke import Result

ROOT = Path(__file__).parents[2]
NAMES = ("guess_number", "best_of_n", "own_objective")
"""The examples that the tiny policy plays."""
PACKAGES = (*NAMES, "backwards")
SMALL = (
    "iterations=2",
    "metrics=[]",
    "resources.threads=1",
    "policy.cold_start.steps=10",
    "policy.cold_start.demonstrations_per_step=16",
    "rollouts.tasks_per_iteration=8",
    "evaluation={tasks: 8}",
)
"""Settings that make a run of the examples take seconds."""


@dataclass(frozen=True)
class Site:
    """A folder that Python searches for packages, in addition to the environment's own."""

    folder: Path

    def erl_pipeline(self, *words: object) -> Result:
        """Run the command, in a process of its own."""
        return forked.run(*words, path=(self.folder,))

    def copy(self, to: Path) -> Site:
        """A copy of the folder, which a test can change."""
        shutil.copytree(self.folder, to)
        return Site(to)


def config_of(name: str) -> Path:
    """The configuration of an example."""
    return ROOT / "examples" / name / f"{name}.yaml"


def small() -> list[str]:
    """The options that make a run small."""
    return [word for setting in SMALL for word in ("--set", setting)]


def install(folder: Path, sources: Path) -> Site:
    """Install all examples into a folder, without a network. A build leaves files next to its sources, so
    they are copied first."""
    for name in PACKAGES:
        shutil.copytree(
            ROOT / "examples" / name, sources / name, ignore=shutil.ignore_patterns("build", "*.egg-info")
        )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    how = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--target", str(folder)]
    subprocess.run([*pip, *how, *(str(sources / name) for name in PACKAGES)], check=True)
    return Site(folder)

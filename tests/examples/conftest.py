"""The examples installed, and a small run of those that the tiny policy plays, once for all tests."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.command_line.invoke import Result
from tests.examples.installed import NAMES, PACKAGES, ROOT, Site, config_of, install, small

# For the unit tests of their code, which need no installation.
_FOLDERS = (*PACKAGES, "realms", "agents", "serving")
sys.path[:0] = [str(ROOT / "examples"), *(str(ROOT / "examples" / name) for name in _FOLDERS)]


@dataclass(frozen=True)
class Trained:
    """A store with a finished run of each example, with the example's name; and what training printed."""

    store: Path
    training: dict[str, Result]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("examples")
    return install(folder / "site", folder / "sources")


@pytest.fixture(scope="session")
def trained(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    store = tmp_path_factory.mktemp("trained") / "store"
    where = ("--store", store, "--no-prefect", "--json", *small())
    training = {name: site.erl_pipeline("train", config_of(name), "--name", name, *where) for name in NAMES}
    return Trained(store, training)

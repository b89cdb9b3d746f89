"""The environment of one file: small, qualified, trained, and its reward is part of recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.installed import ROOT, Site, config_of
from tests.random_models import save_byte_llama

FOLDER = ROOT / "examples" / "backwards"


def test_it_is_one_file_of_60_lines_and_100_with_its_test() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in FOLDER.rglob("*.py")}
    assert lines.keys() == {"backwards.py", "test_backwards.py"}
    assert lines["backwards.py"] <= 60
    assert sum(lines.values()) <= 100


@pytest.mark.slow
def test_it_is_qualified_and_trained_and_its_reward_is_part_of_recipes(site: Site, tmp_path: Path) -> None:
    save_byte_llama(tmp_path / "model", positions=2048)
    config, store = config_of("backwards"), ("--store", tmp_path / "store")
    settings = (
        f"policy.model={tmp_path / 'model'}", "policy.dtype=float32", "iterations=1", "metrics=[]",
        "resources.threads=1",
    )  # fmt: skip
    small = [word for each in settings for word in ("--set", each)]
    qualified = site.erl_pipeline("env", "qualify", config, "--tasks", 4, "--answers", 20, *store, *small)
    assert qualified.status == 0, qualified.output
    trained = site.erl_pipeline("train", config, *store, *small, "--no-prefect", "--json")
    assert trained.status == 0, trained.errors
    assert [row["iteration"] for row in trained.json["rows"]] == [0, 1]

    edited = site.copy(tmp_path / "site")
    source = edited.folder / "backwards.py"
    source.write_text(source.read_text().replace("float(said == right)", "0.5 * (said == right)"))
    plans = [each.erl_pipeline("plan", config, *store, *small, "--json").json for each in (site, edited)]
    ids = [{each["artifact_id"] for each in plan["artifacts"]} for plan in plans]
    assert len(ids[0] & ids[1]) <= 1  # at most the committed copy of the pretrained policy is shared

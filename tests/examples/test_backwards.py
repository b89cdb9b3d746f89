"""The environment of one file: small, qualified, trained, and its reward is part of recipes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from erl_pipeline.environments.interface import ScorerFailed
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.single_turn import SingleTurnEnvironment
from tests.examples.installed import ROOT, Site, config_of
from tests.random_models import byte_tokenizer, random_llama

FOLDER = ROOT / "examples" / "backwards"


def test_it_is_one_file_of_60_lines_and_100_with_its_test() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in FOLDER.rglob("*.py")}
    assert lines.keys() == {"backwards.py", "test_backwards.py"}
    assert lines["backwards.py"] <= 60
    assert sum(lines.values()) <= 100


@pytest.mark.slow
def test_it_is_qualified_and_trained_and_its_reward_is_part_of_recipes(site: Site, tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    model = random_llama(
        len(tokenizer), positions=2048, hidden=32, intermediate=32, eos_token_id=tokenizer.eos_token_id
    )
    model.save_pretrained(tmp_path / "model")
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


@pytest.mark.parametrize("given", [1.5, -0.1, float("nan"), (2.0, "much")])
def test_a_reward_that_is_none_is_a_failure_of_the_scorer(given: float | tuple[float, str]) -> None:
    environment = SingleTurnEnvironment("", "?", lambda said: given)
    with pytest.raises(ScorerFailed, match="allowed are numbers from 0 to 1"):
        asyncio.run(environment.step(AssistantTurn("x")))


def test_a_part_of_a_score_is_told_as_a_number() -> None:
    async def told() -> list[str]:
        environment = SingleTurnEnvironment("Think.", "?", lambda said: (0.25, "It is short."))
        await environment.reset()
        await environment.step(AssistantTurn("x"))
        return [environment.instructions, await environment.feedback(), environment.trace()]

    assert asyncio.run(told()) == [
        "Think.",
        "The score of your reply is 0.25, where 1 is right. It is short.",
        "The prompt was: ?\n\nThe reply was: x",
    ]

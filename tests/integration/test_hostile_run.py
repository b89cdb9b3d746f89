"""Hostile answers through whole iterations of training: whatever a policy writes, nothing is lost.

`ERL_TEST_ANSWERS` is the number of answers for each environment and tool format.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.embedded.engine import EmbeddedEngine
from erl_pipeline.environments.hotpotqa.tool import SEARCH_TOOL
from erl_pipeline.qualification.hostile_answers import hostile_answers
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore
from storage.tables.training import TRAINING_RECORD_FILE, scan_training_records
from storage.tables.trajectories import read_trajectories, said, says, scan_trajectories
from storage.texts import REPLACED_TEXTS, read_json
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.environments.hotpotqa import small_file
from tests.erl_pipeline.runs.small_runs import go
from tests.integration.hostile_engine import NEW_TOKENS, HostileEngine, gold_turns, save_policy

_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
ANSWERS = int(os.environ.get("ERL_TEST_ANSWERS", "24"))
SEED = int(os.environ.get("ERL_TEST_SEED", "0"))
TASKS = 6
LAKE = {
    "type": "frozen_lake",
    "format": "prose",
    "action_mode": "plan",
    "training_boards": TASKS,
    "rows": [3, 3],
    "path_length": [1, 2],
    "max_steps": 3,
}
WIKI = {"type": "hotpotqa", "search": "full_text", "max_turns": 3}
ALONE: Mapping[str, Mapping[str, Any]] = {
    "frozen_lake": LAKE,
    "sokoban": {
        "type": "sokoban",
        "format": "prose",
        "action_mode": "plan",
        "training_boards": TASKS,
        "rows": [5, 5],
        "max_steps": 8,
    },
    "questions": {"type": "questions", "scorer": "exact", "answer_format": "last_line"},
    "reasoning_gym": {
        "type": "reasoning_gym",
        "tasks": {"spell_backward": {"config": {"min_word_len": 3, "max_word_len": 4}}},
        "training_tasks": TASKS,
        "answer_format": "last_line",
    },
    "textarena": {"type": "textarena", "game": "Mastermind-v0", "training_tasks": TASKS, "max_turns": 3},
    "hotpotqa plain": {**WIKI, "tool_format": "plain"},
    "hotpotqa template": {**WIKI, "tool_format": "template"},
}


def _mixture(tool_format: str) -> Mapping[str, Any]:
    """All environments in one run."""
    wiki = {**WIKI, "tool_format": tool_format}
    parts = {name.split()[0]: settings for name, settings in ALONE.items()} | {"hotpotqa": wiki}
    return {"type": "mixture", "parts": {name: {"environment": each} for name, each in parts.items()}}


MIXED = {f"mixture {tool_format}": _mixture(tool_format) for tool_format in ("plain", "template")}
CASES = {**MIXED, **ALONE}
CHOSEN = list(CASES) if "ERL_TEST_ANSWERS" in os.environ else ["mixture template"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"))


@pytest.mark.timeout(600 + ANSWERS)
@pytest.mark.parametrize("case", CHOSEN)
def test_nothing_that_a_policy_writes_is_lost(
    case: str, policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = _config(case, policy, tmp_path)
    plugin = plugins("environments")[config.environment.type].value
    tasks = plugin.training_tasks(config.environment, config.seed)
    engine = HostileEngine(
        hostile_answers(ANSWERS, SEED),
        hostile_answers(ANSWERS, SEED, [SEARCH_TOOL]),
        gold_turns(plugin, config.environment, tasks),
    )
    monkeypatch.setattr(EmbeddedEngine, "generate", lambda self, requests: engine.generate(requests))
    begun = time.perf_counter()

    go(config, tmp_path / "store")

    seconds = time.perf_counter() - begun
    store, run = ArtifactStore(str(tmp_path / "store")), RunStore(str(tmp_path / "store")).open("hostile")
    assert verify_run(store, run).problems == []
    manifests = [store.open(entry.artifact_id).manifest for entry in run.stages()]
    played = [each for each in manifests if each.stage in ("rollout_shard", "evaluate")]
    files = [
        store.open(each.artifact_id).path(file.path)
        for each in played
        for file in each.files
        if file.path.endswith(".parquet")
    ]
    rows = read_trajectories(files)
    # Every answer is in the tables once, with its tokens.
    messages = [message for row in rows for message in json.loads(row.messages)]
    assert engine.hostile >= ANSWERS
    assert sum(message["role"] == "assistant" for message in messages) == len(engine.given)
    assert sum(sum(row.response_mask) for row in rows) == sum(map(len, engine.given))
    assert not {row.finish_reason for row in rows} & {"environment_error", "environment_timeout"}
    # All of them can be searched, and the policy's words are read as they were written.
    found = scan_trajectories(files).select(said().alias("said"), says("reward").alias("says")).collect()
    assert found["said"].null_count() == 0
    assert found.height == len(rows)
    # Whatever was replaced is counted.
    replaced = sum(each.counters.get(REPLACED_TEXTS, 0) for each in played)
    assert replaced == _halves(engine)
    assert (replaced > 0) == case.endswith("template")
    # Each row of an iteration is in its training record, trained or with a reason.
    for iteration in (1, 2):
        made = [each for each in manifests if each.iteration == iteration]
        issued = sum(_rows(each) for each in made if each.stage == "rollout_shard")
        update = next(each for each in made if each.stage == "update_policy")
        record = scan_training_records([store.open(update.artifact_id).path(TRAINING_RECORD_FILE)])
        assert record.select(pl.len()).collect().item() == issued
    remembered = [each.counters["entries"] for each in manifests if each.stage == "index_memory"]
    distilled = [each.counters["sft_rows"] for each in manifests if each.stage == "build_distillation"]
    assert len(remembered) == len(distilled) == 2
    if case != "textarena":  # Nothing knows the code that is to be guessed.
        assert min(sum(remembered), sum(distilled)) > 0
    print(
        f"\n{case}: {engine.hostile:,} hostile of {len(engine.given):,} answers, {len(rows):,} rows, "
        f"{remembered[-1]:,} entries, {sum(distilled):,} distilled, {replaced:,} texts replaced, "
        f"{seconds:.0f} s"
    )


def _config(case: str, policy: Path, folder: Path) -> RunConfig:
    """Two iterations that give at least `ANSWERS` answers, evaluation included."""
    environment = json.loads(json.dumps(CASES[case]))
    for each in [environment, *(part["environment"] for part in environment.get("parts", {}).values())]:
        if each["type"] == "hotpotqa":
            each["task_file"] = small_file.write(folder, *map(small_file.question, range(30)))
        if each["type"] == "questions":
            each["training_file"] = _questions(folder)
    return RunConfig.model_validate(
        {
            "name": "hostile",
            "iterations": 2,
            "resources": {"threads": 1},
            "runner": {"type": "in_process"},
            "metrics": [],
            "warnings": {"no_advantage": None, "ill_formed": None, "cut_off": None},
            "environment": environment,
            "method": {"type": "erl", "ill_formed": "base_prompt"},
            "distillation": {"chain": True},
            "policy": {"type": "pretrained", "model": str(policy)},
            "sampling": {"max_new_tokens": NEW_TOKENS},
            # An episode that is not played well has three answers or more.
            "rollouts": {
                "tasks_per_iteration": TASKS,
                "group_size": max(2, math.ceil(ANSWERS / (2 * TASKS * 2.3))),
                "tasks_per_shard": TASKS // 2,
            },
            "objective": {"advantages_per": "group"},
            # The trainer packs a whole minibatch at once, masks of the attention included.
            "update": {"microbatch_tokens": 4096, "minibatches": max(1, ANSWERS // 500)},
            "fine_tune": {"steps": 2, "microbatch_tokens": 4096, "batch_rows": 256},
            "evaluation": {"tasks": 6, "every": 2, "samples_per_task": 1, "whole_episodes": True},
        }
    )


def _questions(folder: Path) -> str:
    file = folder / "sums.jsonl"
    lines = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(80)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def _rows(manifest: Manifest) -> int:
    return sum(file.rows or 0 for file in manifest.files)


def _halves(engine: HostileEngine) -> int:
    """How many texts with half of a character are in the calls that were given, counted independently."""
    count = 0
    for token_ids in engine.given:
        text = engine.text(token_ids)
        for call in _CALL.finditer(text):
            if not call.group(2):
                continue
            try:
                value = read_json(call.group(1))
            except ValueError:
                continue
            count += sum(_is_halved(each) for each in _texts(value))
    return count


def _texts(value: Any) -> list[str]:
    """All texts of a JSON value, the names in its objects too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for name, each in value.items() for text in (name, *_texts(each))]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else []


def _is_halved(text: str) -> bool:
    return any(0xD800 <= ord(character) <= 0xDFFF for character in text)

"""What a cold start reads, and what it says while it trains."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.engines.probe_file import PROBE_FILE, read_facts
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.policies.tiny import cold_start
from erl_pipeline.policies.tokenizers import load_tokenizer, tokenizer_digest
from erl_pipeline.stages.tasks.prepare_tasks import located
from erl_pipeline.stages.training.first_checkpoint import (
    COLD_START,
    COPY_PRETRAINED,
    ColdStartSettings,
    PretrainedSettings,
    cold_start_with,
)
from erl_pipeline.stages.training.warm_start import DEMONSTRATIONS
from tests.erl_pipeline.runs.small_runs import SMALL, small
from tests.erl_pipeline.stages.calls import Bench
from tests.random_models import random_llama, save_byte_llama, word_tokenizer


def slices(config: RunConfig) -> Any:
    assert COLD_START.slice is not None
    return COLD_START.slice(config, read_sources(config))


def test_the_boards_of_a_held_out_file_are_known_to_the_cold_start_by_their_content(tmp_path: Path) -> None:
    held = tmp_path / "held.jsonl"
    held.write_text('{"task_id": "t", "board": ["SF", "FG"], "max_steps": 2}\n')
    other = tmp_path / "train.jsonl"
    other.write_text('{"task_id": "u", "board": ["SG"], "max_steps": 2}\n')
    named = {**SMALL["environment"], "held_out_file": str(held), "task_file": str(other)}
    settings = slices(small(environment=named))
    assert settings.files == {"held_out_file": hashlib.sha256(held.read_bytes()).hexdigest()}
    assert settings.environment.held_out_file is None
    assert settings.environment.task_file is None
    found = located(settings.environment, settings.files, {settings.files["held_out_file"]: str(held)})
    assert found.model_dump()["held_out_file"] == str(held)


def test_without_such_a_file_the_recipe_does_not_speak_of_it() -> None:
    settings = slices(small())
    assert isinstance(settings, ColdStartSettings)
    assert "files" not in settings.model_dump(mode="json")


def test_a_warm_start_knows_them_too() -> None:
    lake = {
        "type": "frozen_lake",
        "format": "short",
        "action_mode": "plan",
        "task_file": "train.jsonl",
        "held_out_file": "held.jsonl",
    }
    policy = {"type": "pretrained", "model": "somewhere", "warm_start": {"type": "demonstrations"}}
    config = small(environment=lake, policy=policy)
    sources: Any = SimpleNamespace(files={"held.jsonl": "5a", "train.jsonl": "7b"})
    assert DEMONSTRATIONS.slice is not None
    settings = DEMONSTRATIONS.slice(config, sources)
    assert (settings.files, settings.environment.model_dump()["held_out_file"]) == (
        {"held_out_file": "5a"},
        None,
    )


def test_the_goal_of_a_cold_start_moves_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def train(
        *_given: object, output_dir: Path, on_step: Callable[[int, int, float], None], **_more: object
    ) -> Any:
        tokenizer = word_tokenizer()
        random_llama(len(tokenizer)).save_pretrained(output_dir)
        tokenizer.save_pretrained(output_dir)
        for step, steps in ((1, 400), (2, 400), (3, 450), (4, 500)):
            on_step(step, steps, 0.5)
        return SimpleNamespace(steps=4, trained_tokens=9, loss=0.5, shares_right={})

    monkeypatch.setattr(cold_start, "cold_start", train)
    told = list[tuple[int, str]]()
    call: Any = SimpleNamespace(
        settings=SimpleNamespace(policy=SimpleNamespace(cold_start=ColdStartConfig())),
        seed=0,
        folder=tmp_path,
        progress=SimpleNamespace(
            raise_if_stopped=lambda: None,
            begin=lambda total, unit: told.append((total, unit)),
            advance=lambda *_amount, **_numbers: None,
        ),
    )
    parts: Any = SimpleNamespace(examinations=())
    assert cold_start_with(call, parts).counters == {"optimizer_steps": 4, "trained_tokens": 9}
    assert told == [
        (400, "steps"),
        (450, "steps, more until it passes policy.cold_start.gate"),
        (500, "steps, more until it passes policy.cold_start.gate"),
    ]


def test_a_recipe_has_the_arguments_of_the_template_only_where_there_are_some() -> None:
    policy = {"type": "pretrained", "model": "somewhere"}
    sources: Any = SimpleNamespace(weights="5a")
    assert COPY_PRETRAINED.slice is not None
    plain = COPY_PRETRAINED.slice(small(policy=policy), sources)
    assert plain.model_dump(mode="json") == {"weights": "5a", "dtype": "float32"}
    given = small(policy={**policy, "template_arguments": {"b": 1, "a": False}})
    settings = COPY_PRETRAINED.slice(given, sources)
    assert list(settings.model_dump(mode="json")["template_arguments"].items()) == [("a", False), ("b", 1)]


def test_the_first_checkpoint_is_rendered_with_the_arguments_by_whoever_reads_it(tmp_path: Path) -> None:
    folder = save_byte_llama(tmp_path / "model", positions=64)
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = "{% if thinking is not defined %}<think>{% endif %}" + tokenizer.chat_template
    tokenizer.save_pretrained(folder)
    settings = PretrainedSettings(weights="5a", dtype="float32", template_arguments={"thinking": False})
    made = Bench(tmp_path).compute(COPY_PRETRAINED, settings, locations={"5a": str(folder)})
    stored = load_tokenizer(made.path("model"))
    assert stored.chat_template == "{%- set thinking = false %}\n" + tokenizer.chat_template
    asked = [{"role": "user", "content": "hi"}]
    assert stored.apply_chat_template(asked, tokenize=False) == "user: hi\nassistant: "
    assert read_facts(made.path(PROBE_FILE)).tokenizer_digest == tokenizer_digest(stored)

"""Runs that begin with a warm start, of a random Llama with a byte tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.messages import Message
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.plan.plan import Plan, StageKey
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.policies.pretrained import load_policy
from erl_pipeline.runs.run_plans import plan_run
from storage.artifacts.artifact import Artifact
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import RunStore
from storage.upkeep.verification import verify_run
from tests.erl_pipeline.runs.small_runs import SMALL, go, hashes, ids
from tests.random_models import byte_tokenizer, random_llama

POSITIONS = 192
WARM_START = StageKey(0, "warm_start", "")
DEMONSTRATIONS = {
    "type": "demonstrations",
    "steps": 2,
    "batch": 4,
    "warm_up_steps": 0,
    "examined": 2,
    "learning_rate": 0.01,
}
SETTINGS: Mapping[str, Any] = {
    **SMALL,
    "name": "warm",
    "iterations": 1,
    "method": {"type": "erl", "memory": False},
    "environment": {
        "type": "frozen_lake",
        "format": "short",
        "action_mode": "plan",
        "training_boards": 16,
        "rows": [3, 3],
        "holes": [1, 2],
        "path_length": [1, 2],
        "max_steps": 2,
        "symbols": ["P", ".", "X", "G"],
    },
    "sampling": {"max_new_tokens": 4},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    model = random_llama(
        len(tokenizer), positions=POSITIONS, bos_token_id=None, eos_token_id=tokenizer.eos_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(base: Path, warm_start: Mapping[str, Any], **changes: Any) -> RunConfig:
    policy = {"type": "pretrained", "model": str(base), "warm_start": warm_start}
    return RunConfig.model_validate({**SETTINGS, "policy": policy, **changes})


@pytest.fixture(scope="module")
def store(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a run whose policy was trained on demonstrations."""
    folder = tmp_path_factory.mktemp("store")
    go(config(base, DEMONSTRATIONS), folder)
    return folder


def warm_start_of(store: Path, run: str = "warm") -> Artifact:
    return ArtifactStore(str(store)).open(ids(store, run)[WARM_START])


def conversations(artifact: Artifact, name: str = "conversations.jsonl") -> list[list[Message]]:
    lines = artifact.path(name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["messages"] for line in lines]


def test_the_policy_begins_with_what_the_demonstrations_made_of_the_model(store: Path, base: Path) -> None:
    made = warm_start_of(store)
    before, after = load_policy(base).model, load_policy(made.path("model")).model
    assert not torch.equal(before.get_input_embeddings().weight, after.get_input_embeddings().weight)
    update = ArtifactStore(str(store)).open(ids(store, "warm")[StageKey(1, "update_policy", "")])
    assert update.manifest.inputs["checkpoint"] == made.manifest.artifact_id
    assert verify_run(ArtifactStore(str(store)), RunStore(str(store)).open("warm")).problems == []


def test_a_step_takes_a_batch_of_demonstrations_and_each_comes_once(store: Path) -> None:
    made = warm_start_of(store)
    assert len(conversations(made)) == 2 * 4
    assert made.manifest.counters["rows"] == 8
    assert made.manifest.counters["optimizer_steps"] == 2
    tokenizer = byte_tokenizer()
    chat, ends = ChatTokenizer(tokenizer), frozenset({tokenizer.eos_token_id})
    said = sum(sum(chat.completion(each[-1:], ends)[1]) for each in conversations(made))
    assert made.manifest.counters["trained_tokens"] == said


def test_the_artifact_holds_no_state_of_the_optimizer_and_what_was_examined(store: Path) -> None:
    made = warm_start_of(store)
    assert {file.path.partition("/")[0] for file in made.files} == {
        "model",
        "probe.safetensors",
        "conversations.jsonl",
        "examination.jsonl",
    }
    answered = [json.loads(line) for line in made.path("examination.jsonl").read_text().splitlines()]
    # Two boards with a first attempt, an attempt with notes and a reflection each.
    assert [sorted(each["scores"]) for each in answered[:3]] == [
        ["first_success"],
        ["noted_plan", "noted_success", "noted_words"],
        ["reflection_exact"],
    ]
    assert len(answered) == 6
    assert made.manifest.metrics["reflection_exact"] == 0.0


def test_equal_settings_give_equal_bytes(store: Path, base: Path, tmp_path: Path) -> None:
    """Runs with another seed and another method share the warm start, and computing it again gives the same
    bytes."""
    changed = config(base, DEMONSTRATIONS, name="other", seed=7, method={"type": "rlvr"})
    go(changed, tmp_path, 0)
    made = ids(tmp_path, "other")[WARM_START]
    assert made == ids(store, "warm")[WARM_START]
    assert hashes(tmp_path, "other")[made] == hashes(store, "warm")[made]


def plan(base: Path, **changes: Any) -> Plan:
    made = config(base, DEMONSTRATIONS, **changes)
    return plan_run(made, read_sources(made))


def test_an_adapter_is_trained_on_top_of_the_warm_start(base: Path) -> None:
    lora = {"rank": 4, "alpha": 8}
    policy = {"type": "pretrained", "model": str(base), "lora": lora, "warm_start": DEMONSTRATIONS}
    with_adapter = plan(base, policy=policy)
    first = with_adapter.by_place[WARM_START].artifact_id
    assert first == plan(base).by_place[WARM_START].artifact_id
    assert with_adapter.by_place[StageKey(1, "update_policy", "")].recipe.inputs["base"] == first


def test_what_the_demonstrations_follow_from_changes_the_warm_start(base: Path) -> None:
    first = plan(base).by_place[WARM_START].artifact_id
    for changes in (
        {"environment": {**SETTINGS["environment"], "max_steps": 3}},
        {"policy": {"type": "pretrained", "model": str(base), "warm_start": {**DEMONSTRATIONS, "seed": 1}}},
    ):
        assert plan(base, **changes).by_place[WARM_START].artifact_id != first


MESSAGES = [
    [{"role": "user", "content": f"{number} + 1"}, {"role": "assistant", "content": f"{number + 1}"}]
    for number in range(9)
]
TWO_TURNS: list[Message] = [
    {"role": "system", "content": "Count."},
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3"},
    {"role": "assistant", "content": "45"},
]


def write(path: Path, *messages: Any) -> dict[str, Any]:
    """The settings of a warm start on these conversations."""
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in messages))
    return {
        "type": "messages",
        "file": str(path),
        "steps": 30,
        "batch": 4,
        "learning_rate": 0.01,
        "held_out": 0.2,
    }


def test_conversations_of_a_file_are_learned_and_some_held_out(base: Path, tmp_path: Path) -> None:
    """Of ten conversations two are held out; the other eight are trained on in batches of four."""
    settings = write(tmp_path / "mine.jsonl", *MESSAGES, TWO_TURNS)
    go(config(base, settings), tmp_path / "store", 0)
    made = warm_start_of(tmp_path / "store")
    trained, held_out = conversations(made), conversations(made, "held_out.jsonl")
    assert (len(trained), len(held_out)) == (8, 2)
    assert sorted(map(json.dumps, [*trained, *held_out])) == sorted(map(json.dumps, [*MESSAGES, TWO_TURNS]))
    metrics = made.manifest.metrics
    assert metrics["last_loss"] < metrics["first_loss"] - 1
    assert metrics["held_out_loss"] < metrics["held_out_loss_before"] - 1


def test_only_the_assistants_turns_are_trained() -> None:
    """Each byte is a token. A turn is its text and the end token. Between two turns of the assistant are a
    line feed and the user's message, up to the beginning of the next turn."""
    tokenizer = byte_tokenizer()
    _, mask = ChatTokenizer(tokenizer).completion(TWO_TURNS[2:], frozenset({tokenizer.eos_token_id}))
    between = len("\nuser: 3\nassistant: ")
    assert mask == [1] * len("2") + [1] + [0] * between + [1] * len("45") + [1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no JSON", r"mine\.jsonl, row 2: is not JSON"),
        ('{"text": "x"}', r"mine\.jsonl, row 2: messages: allowed are messages with `role` and `content`"),
        (
            '{"messages": [{"role": "user", "content": 1}]}',
            "row 2: messages: allowed are messages",
        ),
        (
            '{"messages": [{"role": "user", "content": "x"}]}',
            r"row 2: messages: a user's message and an assistant's after it are needed",
        ),
        (
            json.dumps({"messages": [{"role": "user", "content": "x" * 200}, MESSAGES[0][1]]}),
            r"mine\.jsonl, row 2: it has \d+ tokens, and the model reads at most 192",
        ),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(base: Path, tmp_path: Path, line: str, message: str) -> None:
    settings = write(tmp_path / "mine.jsonl", MESSAGES[0])
    with (tmp_path / "mine.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputError, match=message):
        go(config(base, settings), tmp_path / "store", 0)


def test_an_edited_file_is_another_warm_start(base: Path, tmp_path: Path) -> None:
    def planned(settings: dict[str, Any]) -> str:
        made = config(base, settings)
        return plan_run(made, read_sources(made)).by_place[WARM_START].artifact_id

    first = planned(write(tmp_path / "mine.jsonl", *MESSAGES))
    assert planned(write(tmp_path / "renamed.jsonl", *MESSAGES)) == first
    assert planned(write(tmp_path / "mine.jsonl", *MESSAGES[1:])) != first


def test_an_environment_without_demonstrations_is_refused(base: Path) -> None:
    environment = {"type": "frozen_lake", "format": "prose"}
    with pytest.raises(ValueError, match="frozen_lake has them only with format: short"):
        config(base, DEMONSTRATIONS, environment=environment)

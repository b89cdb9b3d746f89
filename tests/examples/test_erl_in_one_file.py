"""The method in one file against the pipeline: one iteration of ERL with the tiny policy, committed by real
stages, and the same computed again from its first checkpoint and from what the policy said.

The file and the package share no code, so a fault in either shows here. Tolerances are there because both add
up fp32 numbers in other orders. AdamW's first step divides each gradient by its size, so that the last bits
of a gradient that is nearly 0 decide the direction of a whole step: the biases of attention's keys, which
change no attention weight, have only such gradients and are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import erl_in_one_file as one_file
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import OptimizerConfig, UpdateConfig
from erl_pipeline.policies.pretrained import load_policy
from erl_pipeline.stages.training.advantages import training_sequences
from erl_pipeline.trainers.interface import Reinforcement, TrainingStart
from erl_pipeline.trainers.local import TRAINER, LocalTrainerConfig
from storage.tables.trajectories import Trajectory, read_trajectories
from tests import forked
from tests.examples.installed import ROOT

GROUP = 4
SETTINGS = (
    "iterations=1",
    "metrics=[]",
    "resources.threads=1",
    f"environment={{type: frozen_lake, rows: [{one_file.SIZE}, {one_file.SIZE}], holes: [1, 2], "
    f"path_length: [1, 3], max_steps: {one_file.MAX_STEPS}, training_boards: 200}}",
    f"policy={{hidden_size: {one_file.WIDTH}, layers: {one_file.LAYERS}, heads: {one_file.HEADS}}}",
    "policy.type=tiny",
    "policy.cold_start={steps: 60, demonstrations_per_step: 16, gate: 0.0}",
    "method={type: erl, memory: off}",
    f"rollouts={{tasks_per_iteration: 16, group_size: {GROUP}}}",
    "fine_tune={steps: 1}",
    "evaluation={tasks: 1}",
)
"""What the file does is what the pipeline does with these settings; all others have their defaults."""


@dataclass(frozen=True)
class Iteration:
    """What the stages of one iteration committed."""

    artifacts: Path

    def folder(self, stage: str) -> Path:
        (folder,) = (self.artifacts / stage).iterdir()
        return folder

    def weights(self, stage: str) -> one_file.Weights:
        weights: one_file.Weights = load_file(self.folder(stage) / "model/model.safetensors")
        return weights

    def metrics(self, stage: str) -> dict[str, float]:
        metrics: dict[str, float] = json.loads((self.folder(stage) / "manifest.json").read_text())["metrics"]
        return metrics

    def record(self, stage: str) -> dict[str, dict[str, Any]]:
        """Rows of the training record, by the id of their trajectory."""
        table = pl.read_parquet(self.folder(stage) / "training_record.parquet")
        return {row["trajectory_id"]: row for row in table.to_dicts()}

    @property
    def rows(self) -> list[Trajectory]:
        return read_trajectories([self.folder("rollout_shard") / "trajectories.parquet"])


@pytest.fixture(scope="module")
def iteration(tmp_path_factory: pytest.TempPathFactory) -> Iteration:
    store = tmp_path_factory.mktemp("one_file") / "store"
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    config = ROOT / "configs/frozen_lake.yaml"
    trained = forked.run("train", config, "--store", store, "--no-prefect", *settings)
    assert trained.status == 0, trained.errors
    return Iteration(store / "artifacts")


def turns_of(row: Trajectory) -> list[one_file.Turn]:
    """What the policy said in each turn: runs of tokens with mask 1."""
    tokens = zip(row.response_mask, row.response_token_ids, row.behaviour_logprobs, strict=True)
    said = [list(run) for bit, run in groupby(tokens, key=lambda each: each[0]) if bit]
    return [([token for _, token, _ in run], [logprob for *_, logprob in run]) for run in said]


def place(row: Trajectory, tasks: Sequence[str]) -> tuple[int, int, str]:
    return tasks.index(row.task_id), row.sample_index, row.role


@pytest.fixture(scope="module")
def played(iteration: Iteration) -> list[tuple[Trajectory, one_file.Trajectory]]:
    """Each committed row, and what the file makes of the same episode: the policy says the same, and all else
    (prompts, what the game answers, who reflects, who tries again, rewards) is the file's."""
    rows = iteration.rows
    names = list(dict.fromkeys(row.task_id for row in rows))
    payloads = {row.task_id: json.loads(row.task_payload) for row in rows}
    tasks = [one_file.Task("".join(payloads[name]["board"]), payloads[name]["actions"]) for name in names]
    said = {
        f"{task}/{number}/{role}/{turn}": each
        for row in rows
        for task, number, role in [place(row, names)]
        for turn, each in enumerate(turns_of(row))
    }
    found = one_file.play_episodes(lambda _, turns: [said[turn] for turn in turns], tasks, GROUP)
    by_place = {(row.task, row.number, row.role): row for row in found}
    assert len(found) == len(by_place) == len(rows)
    return [(row, by_place[place(row, names)]) for row in rows]


def trainable(weights: one_file.Weights) -> one_file.Weights:
    return {name: weight.clone().requires_grad_() for name, weight in weights.items()}


def assert_equal_weights(found: one_file.Weights, expected: one_file.Weights) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        same = torch.ones_like(weight, dtype=torch.bool)
        if name.endswith("attn.c_attn.bias"):
            same[one_file.WIDTH : 2 * one_file.WIDTH] = False
        # A step of Adam moves a weight by 3e-4, however small its gradient, and processors round small
        # gradients differently: a tenth of a step is allowed.
        assert torch.allclose(found[name][same], weight[same], rtol=0.0, atol=3e-5), name


def test_words_and_positions_are_those_of_the_tiny_policy(iteration: Iteration) -> None:
    model = iteration.folder("bootstrap") / "model"
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary, key=vocabulary.get) == list(one_file.WORDS)
    assert json.loads((model / "config.json").read_text())["n_positions"] == one_file.POSITIONS
    fresh = one_file.new_weights(0)
    shapes = {name: weight.shape for name, weight in iteration.weights("bootstrap").items()}
    assert shapes == {name: weight.shape for name, weight in fresh.items()}


def test_episodes_have_the_same_tokens_and_rewards(
    played: list[tuple[Trajectory, one_file.Trajectory]],
) -> None:
    roles = {row.role for row, _ in played}
    assert roles == {"first_attempt", "reflection", "second_attempt"}
    for row, mine in played:
        assert tuple(mine.prompt) == row.prompt_token_ids
        assert tuple(mine.response) == row.response_token_ids
        assert tuple(mine.mask) == row.response_mask
        assert tuple(mine.logprobs) == row.behaviour_logprobs
        assert (mine.reward, mine.truncated) == (row.reward, row.truncated)
    assert len({row.reward for row, _ in played}) == 2


def test_the_network_gives_the_log_probabilities_that_were_sampled(
    iteration: Iteration, played: list[tuple[Trajectory, one_file.Trajectory]]
) -> None:
    rows = [mine for _, mine in played]
    found = one_file.logprobs_of(iteration.weights("bootstrap"), rows)
    sampled = [p for row in rows for p, bit in zip(row.logprobs, row.mask, strict=True) if bit]
    assert found.tolist() == pytest.approx(sampled, abs=1e-5)


def test_one_iteration_learns_the_same(
    iteration: Iteration, played: list[tuple[Trajectory, one_file.Trajectory]]
) -> None:
    rows = [mine for _, mine in played]
    record = iteration.record("update_policy")
    expected = [record[row.trajectory_id]["advantage"] for row, _ in played]
    advantages = one_file.advantages(rows)
    assert advantages == pytest.approx(expected, abs=1e-6)
    assert 0.0 in advantages
    assert len(set(advantages)) > 4

    weights = trainable(iteration.weights("bootstrap"))
    optimizer = one_file.new_optimizer(weights)
    loss = one_file.take_step(weights, optimizer, one_file.policy_loss(weights, rows, advantages))
    assert loss == pytest.approx(iteration.metrics("update_policy")["policy_loss"], abs=1e-6)
    assert_equal_weights(weights, iteration.weights("update_policy"))

    good = one_file.distilled(rows)
    assert len(good) == len(iteration.record("fine_tune")) > 0
    weights = trainable(iteration.weights("bootstrap"))
    losses = one_file.learn(weights, one_file.new_optimizer(weights), rows)
    assert losses == pytest.approx((loss, iteration.metrics("fine_tune")["loss"]), abs=1e-5)
    assert_equal_weights(weights, iteration.weights("fine_tune"))


def test_the_clip_range_acts_alike_where_the_policy_has_moved_on(
    iteration: Iteration, played: list[tuple[Trajectory, one_file.Trajectory]], tmp_path: Path
) -> None:
    """In an iteration of one step all ratios are 1. Here the policy that learns is another than the one that
    sampled, so that about a third of the tokens has a ratio outside of the clip range."""
    first = iteration.folder("bootstrap") / "model"
    noise = torch.Generator().manual_seed(0)
    moved = {
        name: (weight + 0.02 * torch.randn(weight.shape, generator=noise)).contiguous()
        for name, weight in iteration.weights("bootstrap").items()
    }
    model = tmp_path / "model"
    model.mkdir()
    for file in first.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    save_file(moved, model / "model.safetensors", metadata={"format": "pt"})

    start = TrainingStart(tmp_path, lambda: load_policy(model), OptimizerConfig())
    trainer = TRAINER.open(LocalTrainerConfig(), start)
    sequences = training_sequences([row for row, _ in played], ObjectiveConfig())
    found = trainer.reinforce(Reinforcement(sequences, ObjectiveConfig(), UpdateConfig(), seed=0))
    trainer.save(tmp_path / "after")
    assert found.clip_fraction > 0.1

    rows = [mine for _, mine in played]
    weights = trainable(moved)
    loss = one_file.policy_loss(weights, rows, one_file.advantages(rows))
    assert one_file.take_step(weights, one_file.new_optimizer(weights), loss) == pytest.approx(
        found.policy_loss, abs=1e-5
    )
    assert_equal_weights(weights, load_file(tmp_path / "after/model/model.safetensors"))


def test_what_is_said_depends_on_seed_and_turn_alone() -> None:
    weights = one_file.new_weights(0)
    contexts = [one_file.ids("<bos> <user>"), one_file.ids("<bos> <user> notes ? ? ? ? <assistant>")]
    both = one_file.sample(weights, 0, contexts, ["a", "b"])
    alone = one_file.sample(weights, 0, contexts[1:], ["b"])[0]
    assert alone[0] == both[1][0]
    assert alone[1] == pytest.approx(both[1][1], abs=1e-5)
    assert one_file.sample(weights, 1, contexts, ["a", "b"]) != both


def test_the_script_tells_of_one_iteration() -> None:
    path = ROOT / "examples/erl_in_one_file.py"
    assert len(path.read_text().splitlines()) <= 400
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert "- second_attempt, reward 1:" in done.stdout
    before, after = done.stdout.split("second attempts had\n")[1].split(
        " nats a token without notes, and have "
    )
    assert float(after.strip().rstrip(".")) < float(before)

"""Two ranks that are kept for all tests, since each takes seconds to import torch; and checkpoints for
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.policies.checkpoints import CheckpointParts, StoredPolicy, WeightsSettings
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.interface import TrainerContext, TrainingStart
from tests.erl_pipeline.runs.small_runs import go
from tests.erl_pipeline.trainers.fsdp2.forked_ranks import forked_ranks
from tests.erl_pipeline.trainers.fsdp2.nodes import Node, running_node
from tests.erl_pipeline.trainers.fsdp2.orders import Orders
from tests.erl_pipeline.trainers.fsdp2.rows import Start
from tests.erl_pipeline.trainers.fsdp2.sharded import TrainedOnOne, sharded
from tests.erl_pipeline.trainers.fsdp2.stopped import is_there
from tests.random_models import WORDS, random_gpt2, random_llama, word_tokenizer
from tests.waiting import wait_for


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankGroup]:
    with forked_ranks():
        group = RankGroup(2, 1, tmp_path_factory.mktemp("ranks"))
    yield group
    group.end()


@pytest.fixture(scope="session")
def trained_on_one(tmp_path_factory: pytest.TempPathFactory) -> TrainedOnOne:
    """For tests that compare its bytes with those of another run."""
    store = tmp_path_factory.mktemp("trained") / "store"
    with pytest.MonkeyPatch.context() as patched:
        noted = Orders(patched)
        with forked_ranks():
            go(sharded(1, store={"background_commit_mb": None}), store, 2)
    return TrainedOnOne(store, noted)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Another node, for trainings that leave it running."""
    with running_node(tmp_path_factory.mktemp("node") / "own") as node:
        yield node


@pytest.fixture(scope="session")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of two small models: `llama`, whose head is tied to its embeddings, and `gpt2`, which has a
    separate head. Some of their sizes (7 words, 36 hidden units) are not divisible among the ranks."""
    folder = tmp_path_factory.mktemp("first")
    llama = random_llama(len(WORDS), hidden=36, intermediate=15, eos_token_id=2)
    gpt2 = random_gpt2(len(WORDS), hidden=36, bos_token_id=1, eos_token_id=2)
    for name, model in (("llama", llama), ("gpt2", gpt2)):
        model.save_pretrained(folder / name / "model")
        word_tokenizer().save_pretrained(folder / name / "model")
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """The start of a training from a checkpoint; with `lora` the checkpoint is an adapter of `base`, or is
    to get one."""

    def make(
        checkpoint: Path,
        base: Path | None = None,
        lora: LoraConfig | None = None,
        dtype: str = "float32",
        **optimizer: object,
    ) -> TrainingStart:
        weights = WeightsSettings.model_validate(
            {"dtype": dtype, "lora": lora, "adapter_seed": None if lora is None else 0}
        )
        adapter = None if base in (None, checkpoint) else checkpoint / "model"
        whole = checkpoint if adapter is None or base is None else base
        parts = CheckpointParts(checkpoint.name, whole.name, whole / "model", adapter)
        stored = StoredPolicy(parts, weights)
        workplace = TrainerContext(stored, tmp_path / "scratch", threads=2)
        return TrainingStart(checkpoint, stored.load, OptimizerConfig.model_validate(optimizer), workplace)

    return make


@pytest.fixture
def quick_ranks() -> Iterator[None]:
    """Ranks that this process starts are forked."""
    with forked_ranks():
        yield


@pytest.fixture
def orders(quick_ranks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orders]:
    """Noted by a listener, not replaced: the ranks are real, but forked."""
    noted = Orders(monkeypatch)
    yield noted
    wait_for("the end of the ranks", lambda: not any(map(is_there, noted.processes)), patience=60.0)

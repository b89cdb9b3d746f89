"""Nodes that Ray finds for a training: the bytes of one machine, also after one is lost; one training at a
time; what is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pytest

from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig
from erl_pipeline.config.pipeline import NodesToFind
from erl_pipeline.config.plugins import operational_part
from erl_pipeline.plan.plan import PlannedStage
from erl_pipeline.plan.runner import IN_PROCESS, InProcessConfig
from erl_pipeline.policies.checkpoints import CHECKPOINT, WeightsSettings
from erl_pipeline.stages.training.distillation import DATASET, FINE_TUNE, NEWEST, FineTuneSettings
from erl_pipeline.trainers.fsdp2 import Fsdp2TrainerConfig
from flows.ray.runner import RAY
from flows.ray.settings import RayConfig
from storage.artifacts.recipe import Recipe
from storage.errors import ConfigError
from storage.tables.training import write_sft_rows
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.trainers.fsdp2.nodes import ranks_below
from tests.erl_pipeline.trainers.fsdp2.stopped import ROW
from tests.flows.ray.conftest import LocalCluster
from tests.flows.records import begun, file_hashes
from tests.flows.small_plans import BORROW, Recorded, chain, planned, walk
from tests.random_models import WORDS, random_llama, word_tokenizer
from tests.waiting import wait_for

APART = Fsdp2TrainerConfig(processes=2, nodes=2)


def on(cluster: LocalCluster, **settings: object) -> RayConfig:
    """One worker on the cluster, without GPUs."""
    return RayConfig.model_validate({"address": cluster.address, "device_stage": {"gpus": 0}, **settings})


def a_training(store: Path) -> PlannedStage:
    """Three steps in two processes, from a checkpoint and a row that are committed now."""
    bench = Bench(begun(store).parent)

    def write_policy(folder: Path) -> None:
        random_llama(len(WORDS), hidden=36, intermediate=15, eos_token_id=2).save_pretrained(folder / "model")
        word_tokenizer().save_pretrained(folder / "model")

    inputs = {
        CHECKPOINT: bench.commit("bootstrap", "checkpoint", write_policy),
        NEWEST: bench.commit(
            "build_distillation", "sft_dataset", lambda folder: write_sft_rows(folder / DATASET, [ROW])
        ),
    }
    settings = FineTuneSettings(
        fine_tune=FineTuneConfig(steps=3),
        optimizer=OptimizerConfig(),
        trainer=APART,
        weights=WeightsSettings(dtype="float32", lora=None, adapter_seed=None),
    )
    recipe = Recipe(
        stage=FINE_TUNE.name,
        stage_version=FINE_TUNE.version,
        settings=settings.model_dump(mode="json"),
        inputs=inputs,
        seed=0,
        kind=FINE_TUNE.output,
    )
    return PlannedStage(FINE_TUNE, settings, recipe, 1, "", recipe.artifact_id)


def ranks_of_nodes() -> list[psutil.Process]:
    """Ranks that Ray has started, and that are not on the machine of the stage. Other tests of this process
    may keep ranks too, as its own children."""
    nodes = [child for child in psutil.Process().children() if child.name() == "raylet"]
    return [rank for node in nodes for number, rank in ranks_below(node.pid).items() if number == "1"]


@pytest.mark.usefixtures("api")
def test_two_nodes_give_the_bytes_of_one_also_after_one_was_lost(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    cluster.have_nodes(2)
    there, here = tmp_path / "there" / "store", tmp_path / "here" / "store"
    training = a_training(there)
    assert a_training(here).artifact_id == training.artifact_id
    listener = Recorded()

    def lose_a_node() -> None:
        rank = wait_for("a rank on the other node", ranks_of_nodes)[0]
        launcher = rank.parent()
        assert launcher is not None
        actor = launcher.parent()
        assert actor is not None
        actor.kill()
        rank.wait(timeout=60)

    losing = threading.Thread(target=lose_a_node)
    losing.start()
    outcomes = walk(
        RAY,
        # Each needs both processors of a node: so the two are on different ones.
        on(cluster, device_stage={"gpus": 0, "cpus": 2}),
        there,
        [training],
        listener=listener,
        trainer=operational_part("trainers", APART),
        nodes=NodesToFind(count=1, processes=1),
    )
    losing.join()
    assert [each.artifact_id for each in outcomes] == [training.artifact_id]
    (warning,) = [str(words[1]) for words in listener.told if words[0] == "warn"]
    assert " of its trainer is gone: " in warning
    assert warning.endswith("It is computed again.")
    assert not ranks_of_nodes()

    walk(IN_PROCESS, InProcessConfig(), here, [training])
    assert file_hashes(there, [training.artifact_id]) == file_hashes(here, [training.artifact_id])


class WaitsAreSeen(Recorded):
    """Writes a marker file when a stage is told to wait."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        assert seconds >= 0
        self.told.append(("waiting", what, detail))
        (self._folder / "waited").touch()


@pytest.mark.usefixtures("api")
def test_nodes_are_lent_to_one_training_after_the_other(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.have_nodes(2)
    listener = WaitsAreSeen(tmp_path)
    walk(
        RAY,
        on(cluster, workers=2),
        begun(tmp_path / "store"),
        [planned(BORROW, name, folder=tmp_path) for name in ("one", "two")],
        listener=listener,
        nodes=NodesToFind(count=1, processes=1),
    )
    first, second, third, fourth = (tmp_path / "held").read_text().splitlines()
    assert {first, third} == {"one begins", "two begins"}
    assert (second, fourth) == (first.replace("begins", "ends"), third.replace("begins", "ends"))
    assert ("waiting", "the other nodes of the trainer", "another stage trains on them") in listener.told


def test_nodes_for_which_there_is_no_room_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    store = begun(tmp_path / "store")
    with pytest.raises(ConfigError) as refused:
        walk(RAY, on(cluster, start_seconds=0.5), store, chain(1), nodes=NodesToFind(count=99, processes=1))
    assert "99 more for the trainer (trainer.nodes: 100), each with 1 CPUs" in str(refused.value)
    wanting = on(cluster, device_stage={"gpus": 2})
    for others in (1, 0):
        with pytest.raises(
            ConfigError, match=r"device_stage\.gpus: 2; each node trains with 4 processes .* set it to 4"
        ):
            walk(RAY, wanting, store, chain(1), nodes=NodesToFind(count=others, processes=4))

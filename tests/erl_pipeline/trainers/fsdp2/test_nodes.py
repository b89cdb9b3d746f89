"""Nodes that are killed, do not fit, or do not come."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.plugins import operational_part
from erl_pipeline.network import Address
from erl_pipeline.policies.checkpoints import CheckpointParts, StoredPolicy, WeightsSettings
from erl_pipeline.trainers.fsdp2 import nodes as nodes_module
from erl_pipeline.trainers.fsdp2 import rank_group
from erl_pipeline.trainers.fsdp2.devices import (
    QUESTION,
    REPORT,
    Devices,
    TrainerNodeReport,
    look,
    problems_of,
)
from erl_pipeline.trainers.fsdp2.launcher import connect
from erl_pipeline.trainers.fsdp2.nodes import NodesConfig, serve, take_part
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.work import Begin
from storage.errors import ConfigError, PipelineError
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.trainers.fsdp2.nodes import Node, free_address, ranks_below, running_node
from tests.erl_pipeline.trainers.fsdp2.stopped import EndlessStage, is_there
from tests.strangers import SAID, visited
from tests.waiting import wait_for

HERE = TrainerNodeReport(
    host="first",
    python="3.13.1",
    processor="EPYC",
    versions={"torch": "2.13.0"},
    code="c0de",
    number="10.0.0.1",
    devices=Devices(gpus=2, cores=8),
    sign="a secret",
    unseen=(),
)
NOTHING_READ = Begin(
    StoredPolicy(
        CheckpointParts("none", "none", Path("/none/model"), None),
        WeightsSettings(dtype="float32", lora=None, adapter_seed=None),
    ),
    Path("/none"),
    OptimizerConfig(),
)
HOST = f"{socket.gethostname()} (127.0.0.1)"


@pytest.mark.usefixtures("quick_ranks")
def test_a_rank_that_is_killed_on_another_node_fails_its_stage_at_once(
    node: Node, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The rank here loses its connection and says so long before a busy node says why.
    monkeypatch.setattr(rank_group, "_LAST_WORDS_SECONDS", 0.0)
    settings = node.settings()
    bench = Bench(tmp_path, operational_part("trainers", settings))
    stage = EndlessStage(bench, settings, first / "llama")
    killed = list[float]()

    def kill_one() -> None:
        wait_for("the first step of rank 1", node.has_stepped)
        node.ranks["1"].kill()
        killed.append(time.monotonic())

    killer = threading.Thread(target=kill_one)
    killer.start()
    said = (
        rf"rank 1 of 2 on node {socket.gethostname()} \(127.0.0.1\) .* was ended by SIGKILL(.|\n)*"
        r"Its last lines:\n(.|\n)*\nstep \d+, loss "
    )
    with pytest.raises(PipelineError, match=said):
        stage.compute()
    killer.join()
    # Without the node's word, the other rank would wait for it for half an hour.
    assert time.monotonic() - killed[0] < 60.0
    assert not stage.committed()
    wait_for("the end of the node's ranks", lambda: not node.ranks, patience=60.0)
    assert node.process.poll() is None
    (folder,) = bench.resources.scratch.glob("fsdp2-*")
    assert [path.name for path in folder.iterdir()] == ["logs"]


@pytest.mark.usefixtures("quick_ranks")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_that_ends_is_lost_and_leaves_no_rank(how: signal.Signals, tmp_path: Path) -> None:
    with running_node(tmp_path / "node") as node:
        group = RankGroup(2, 1, tmp_path / "scratch", node.config())
        rank = wait_for("the node's rank", lambda: node.ranks)["1"]
        node.process.send_signal(how)
        with pytest.raises(PipelineError, match=r"node .* \(127.0.0.1\), which has rank 1 .* is lost"):
            group.do(NOTHING_READ)
        assert node.process.wait() == (-signal.SIGKILL if how == signal.SIGKILL else 128 + signal.SIGTERM)
        processes = [rank.pid, *group.process_ids.values()]
        wait_for("the end of the ranks", lambda: not any(map(is_there, processes)), patience=60.0)
        if how == signal.SIGTERM:
            assert "Ended; no rank is left here." in node.said
            assert not list(node.folder.glob("erl-pipeline-*"))


@pytest.mark.usefixtures("quick_ranks")
def test_a_node_is_refused_for_its_software_or_its_store_and_may_join_again(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(
        ConfigError, match=rf"\(127.0.0.1\): it does not see {missing}: trainer.nodes: 2 needs"
    ):
        RankGroup(2, 1, tmp_path, node.config(folders=[missing]))
    wait_for("what the node says", lambda: f"it does not see {missing}" in node.said)

    with monkeypatch.context() as patched:
        patched.setattr(nodes_module, "look", lambda *asked: replace(look(*asked), python="3.10.0"))
        with pytest.raises(ConfigError, match=r"\(127.0.0.1\): Python is 3.*, here 3.10.0: install the same"):
            RankGroup(2, 1, tmp_path, node.config())

    group = RankGroup(2, 1, tmp_path, node.config(folders=[tmp_path]))
    wait_for("the node's rank", lambda: node.ranks)
    group.end()
    wait_for("the end of the node's rank", lambda: not node.ranks, patience=60.0)
    assert not list(tmp_path.iterdir())


def test_nodes_that_do_not_come_are_missed_and_strangers_are_not_counted(tmp_path: Path) -> None:
    address = free_address()
    told = list[tuple[str, float, str]]()
    with ExitStack() as strangers:

        def wait(what: str, seconds: float, news: str) -> None:
            told.append((what, seconds, news))
            strangers.enter_context(visited(address.host, address.port, silent=1))

        config = NodesConfig(4, address, start_seconds=1.5, tell_waiting=wait)
        missed = rf"nodes: 4; 0 of 3 other nodes came within .* \(1.5\): none. .* trainer-node {address}"
        with pytest.raises(ConfigError, match=missed):
            RankGroup(4, 1, tmp_path, config)
    ((what, seconds, news),) = told
    assert (what, news) == ("the other nodes of the trainer", f"0 of 3 have come to {address}")
    assert 1.0 < seconds < 1.5

    with (
        socket.create_server((address.host, address.port)),
        pytest.raises(ConfigError, match=rf"trainer.address: this machine cannot listen on {address}"),
    ):
        RankGroup(4, 1, tmp_path, replace(config, start_seconds=0.1))
    assert not list(tmp_path.iterdir())


def test_who_waits_for_nodes_can_be_stopped(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RankGroup(2, 1, tmp_path, NodesConfig(2, free_address(), 60.0, raise_if_stopped=stop))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("there", "problem"),
    [
        (replace(HERE, python="3.12.0"), "Python is 3.12.0, here 3.13.1: install the same"),
        (replace(HERE, versions={"torch": "2.12.1"}), "package torch is 2.12.1, here 2.13.0"),
        (replace(HERE, code="0ther"), "the code of erl-pipeline differs"),
        (
            replace(HERE, devices=Devices(gpus=1, cores=64)),
            "trainer.processes: 4 on trainer.nodes: 2, so 2 on each; it has 1 GPU, and each process needs",
        ),
        (replace(HERE, devices=Devices(gpus=0, cores=64)), "it has 0 GPUs, this machine 2"),
        (
            replace(HERE, devices=Devices(gpus=2, cores=8, ids=("GPU-1", "GPU-2"))),
            "it would train on the same GPUs as node second: start one trainer-node on each machine, or give",
        ),
        (
            replace(HERE, unseen=(Path("/base"),)),
            "it does not see /base: trainer.nodes: 2 needs a store in",
        ),
        (replace(HERE, sign=""), "it does not see the store: trainer.nodes: 2 needs a store in"),
    ],
)
def test_each_difference_between_nodes_is_a_problem(there: TrainerNodeReport, problem: str) -> None:
    (found,) = problems_of(there, HERE, processes=2, nodes=2, taken={"GPU-2": "node second"})
    assert problem in found


def test_nodes_may_have_other_processors_and_more_devices() -> None:
    gpus = Devices(gpus=3, cores=4, ids=("GPU-3", "GPU-4", "GPU-2"))  # It trains on the first two.
    there = replace(HERE, host="second", processor="Xeon", devices=gpus)
    assert list(problems_of(there, HERE, processes=2, nodes=2, taken={"GPU-2": "node third"})) == []


def guest(address: Address, gpu: str) -> None:
    """A node that has this GPU, and leaves when it is told to start or why it cannot."""
    store = connect(address, 10.0)
    report = look(QUESTION.validate_json(store.get("question")), "127.0.0.1")
    number = store.add("nodes", 1)
    report = replace(report, devices=Devices(1, 8, (gpu,)))
    store.set(f"report/{number}", REPORT.dump_json(report).decode())
    store.get(f"answer/{number}")
    store.delete_key(f"answer/{number}")


def test_two_nodes_with_one_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        nodes_module, "look", lambda *asked: replace(look(*asked), devices=Devices(1, 8, ("GPU-1",)))
    )
    address = free_address()
    guests = list[threading.Thread]()

    def bring(_what: str, _seconds: float, _news: str) -> None:
        if not guests:
            for gpu in ("GPU-1", "GPU-2", "GPU-2"):
                guests.append(threading.Thread(target=guest, args=(address, gpu)))
                guests[-1].start()

    with pytest.raises(ConfigError) as refused:
        RankGroup(4, 1, tmp_path, NodesConfig(4, address, start_seconds=60.0, tell_waiting=bring))
    for each in guests:
        each.join()
    _, *problems = str(refused.value).splitlines()
    same = "it would train on the same GPUs as"
    assert sorted(problem.partition(": start")[0].strip() for problem in problems) == [
        f"node {HOST}: {same} node {HOST}",
        f"node {HOST}: {same} the machine that computes the stage",
    ]


class OtherNode:
    """A node that a runner keeps, in a thread of this process."""

    host = "127.0.0.1"

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.thread: threading.Thread | None = None

    def invite(self, take_part: Callable[[], str], raise_if_stopped: Callable[[], None]) -> None:
        raise_if_stopped()
        sent = pickle.loads(pickle.dumps(take_part))
        self.thread = threading.Thread(target=lambda: self.ends.append(sent()))
        self.thread.start()


def test_nodes_that_a_runner_keeps_are_invited_and_let_go(tmp_path: Path) -> None:
    other = OtherNode()
    group = RankGroup(2, 1, tmp_path, NodesConfig(2, Address(other.host, 0), 60.0, others=other))
    wait_for("both ranks", lambda: len(ranks_below(os.getpid(), tmp_path)) == 2)
    group.end()
    assert other.thread is not None
    other.thread.join()
    assert not ranks_below(os.getpid(), tmp_path)
    assert other.ends == ["The training has ended; so have the ranks here."]


@pytest.mark.usefixtures("quick_ranks")
def test_strangers_neither_end_the_wait_for_a_node_nor_hold_it_up(tmp_path: Path) -> None:
    """Fifty say nothing, others anything; then the node comes."""
    address = free_address()
    ends = list[str]()
    node = threading.Thread(
        target=lambda: ends.append(take_part(address, lambda _line: None, threading.Event()))
    )
    with ExitStack() as strangers:

        def come(_what: str, _seconds: float, _news: str) -> None:
            if node.ident is None:
                strangers.enter_context(visited(address.host, address.port))
                node.start()

        group = RankGroup(2, 1, tmp_path, NodesConfig(2, address, start_seconds=60.0, tell_waiting=come))
        with pytest.raises(PipelineError, match="/none"):
            group.do(NOTHING_READ)
    node.join()
    assert ends == ["The training has ended; so have the ranks here."]


def test_nothing_that_listens_there_ends_a_trainer_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(nodes_module, "_CONNECT_SECONDS", 0.3)
    stop, told = threading.Event(), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        address = Address(*server.getsockname())
        serving = pool.submit(serve, address, told.append, stop)
        try:
            for said in SAID:
                for _ in range(2):  # Once only to see whether anybody listens.
                    caller, _ = server.accept()
                    with caller, suppress(OSError):  # It may leave in the middle.
                        caller.sendall(said)
                        caller.shutdown(socket.SHUT_WR)
                        while caller.recv(4096):
                            pass
        finally:
            stop.set()
        serving.result(60.0)  # Nobody answers its last calls.
    why = "what listens there does not answer as torch's store does"
    assert f"No run trains there now ({why}); trying again until one does." in told

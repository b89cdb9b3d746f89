"""Nodes that are killed, do not fit, or do not come."""

from __future__ import annotations

import pickle
import secrets
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
from erl_pipeline.config.plugins.operational import operational_part
from erl_pipeline.network import Address
from erl_pipeline.policies.checkpoints import CheckpointParts, StoredPolicy, WeightsSettings
from erl_pipeline.trainers.fsdp2 import meeting
from erl_pipeline.trainers.fsdp2 import node as node_module
from erl_pipeline.trainers.fsdp2.devices import Devices
from erl_pipeline.trainers.fsdp2.line import Line, LineEnded, OtherKey
from erl_pipeline.trainers.fsdp2.meeting import meet
from erl_pipeline.trainers.fsdp2.node import take_part
from erl_pipeline.trainers.fsdp2.node_report import QUESTION, REPORT, NodeReport, look, problems_of
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.work import Begin
from storage.errors import ConfigError, PipelineError
from tests.erl_pipeline.stages.calls import Bench
from tests.erl_pipeline.trainers.fsdp2.nodes import KEY, VARIABLE, Node, running_node
from tests.erl_pipeline.trainers.fsdp2.stopped import EndlessStage, is_there
from tests.erl_pipeline.trainers.fsdp2.test_line import HOSTILE
from tests.strangers import visited
from tests.waiting import wait_for

HERE = NodeReport(
    host="first",
    python="3.13.1",
    processor="EPYC",
    versions={"torch": "2.13.0"},
    code="c0de",
    devices=Devices(gpus=2, cores=8),
    unseen=(),
    clock=0.0,
)
NOTHING_READ = Begin(
    StoredPolicy(
        CheckpointParts("none", "none", Path("/none/model"), None),
        WeightsSettings(dtype="float32", lora=None, adapter_seed=None),
    ),
    Path("/none"),
    OptimizerConfig(),
)


def go_on() -> None:
    """What a run says that was not asked to stop."""


def unheard(_what: str, _seconds: float, _news: str) -> None:
    """Nobody looks at what is told of the waiting."""


def test_a_rank_that_is_killed_on_another_node_fails_its_stage_at_once(
    node: Node, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
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
    assert time.monotonic() - killed[0] < 10.0
    assert not stage.committed()
    wait_for("the end of the node's ranks", lambda: not node.ranks, patience=10.0)
    assert node.process.poll() is None
    (folder,) = bench.resources.scratch.glob("fsdp2-*")
    assert [path.name for path in folder.iterdir()] == ["rank-0.log"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_node_that_ends_is_lost_and_leaves_no_rank(how: signal.Signals, tmp_path: Path) -> None:
    with running_node(tmp_path / "node") as node:
        group = RankGroup(2, 1, tmp_path / "scratch", meet(node.meeting(), tmp_path, [], go_on, unheard))
        wait_for("the node's rank", lambda: node.ranks)
        processes = [*group.process_ids, *(rank.pid for rank in node.ranks.values())]
        assert len(processes) == 2
        node.process.send_signal(how)
        with pytest.raises(PipelineError, match=r"node .* \(127.0.0.1\), which has rank 1 .* is lost"):
            group.do(NOTHING_READ)
        assert node.process.wait() == (-signal.SIGKILL if how == signal.SIGKILL else 128 + signal.SIGTERM)
        wait_for("the end of the ranks", lambda: not any(map(is_there, processes)), patience=20.0)
        if how == signal.SIGTERM:
            assert "Ended; no rank is left here." in node.said
            assert not list(node.folder.glob("erl-pipeline-*"))


def test_a_node_is_refused_for_its_key_its_software_or_its_store_and_may_join_again(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = node.meeting(key=b"another key for tests", start_seconds=4.0)
    refused = rf"since they had another key: \d+ from 127.0.0.1\. .* trainer.key_variable: .* {VARIABLE} "
    with pytest.raises(ConfigError, match=refused):
        meet(other, tmp_path, [], go_on, unheard)
    wait_for("what the node says", lambda: "has another key than this node" in node.said)

    missing = tmp_path / "missing"
    with pytest.raises(
        ConfigError, match=rf"\(127.0.0.1\): it does not see {missing}: trainer.nodes: 2 needs"
    ):
        meet(node.meeting(), tmp_path, [missing], go_on, unheard)
    wait_for("what the node says", lambda: f"it does not see {missing}" in node.said)

    with monkeypatch.context() as patched:
        patched.setattr(meeting, "look", lambda question: replace(look(question), python="3.10.0"))
        with pytest.raises(ConfigError, match=r"\(127.0.0.1\): Python is 3.*, here 3.10.0: install the same"):
            meet(node.meeting(), tmp_path, [], go_on, unheard)

    met = meet(node.meeting(), tmp_path, [tmp_path], go_on, unheard)
    assert [each.node for each in met.nodes] == [f"{socket.gethostname()} (127.0.0.1)"]
    for each in met.nodes:
        each.end()
    assert not list(tmp_path.glob(".trainer-*"))


def test_nodes_that_do_not_come_are_missed_and_strangers_are_not_counted(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = meeting.Meeting(4, 4, Address("127.0.0.1", port), KEY.encode(), VARIABLE, start_seconds=1.5)
    answers = list[bytes]()
    told = list[tuple[str, float, str]]()

    def connect() -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionRefusedError:
            return None

    def visit() -> None:
        stranger = wait_for("the meeting", connect)
        assert stranger is not None
        with stranger, suppress(ConnectionResetError):
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while data := stranger.recv(4096):
                answers.append(data)

    visitor = threading.Thread(target=visit)
    visitor.start()
    missed = rf"nodes: 4; 0 of 3 other nodes came within .* \(1.5\): none. .* trainer-node 127.0.0.1:{port}"
    with pytest.raises(ConfigError, match=missed):
        meet(place, tmp_path, [], go_on, lambda *words: told.append(words))
    visitor.join()
    ((what, seconds, news),) = told
    assert (what, news) == ("the other nodes of the trainer", f"0 of 3 have come to 127.0.0.1:{port}")
    assert 1.0 < seconds < 1.5
    assert b"erl-pipeline trainer-node" in b"".join(answers)

    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ConfigError, match=rf"trainer.address: this machine cannot listen on 127.0.0.1:{port}"),
    ):
        meet(replace(place, start_seconds=0.1), tmp_path, [], go_on, unheard)


def test_who_waits_for_nodes_can_be_stopped(tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    with pytest.raises(KeyboardInterrupt):
        meet(meeting.Meeting(2, 2, address, KEY.encode(), VARIABLE, 60.0), tmp_path, [], stop, unheard)
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
            replace(HERE, unseen=(Path("/store"),)),
            "it does not see /store: trainer.nodes: 2 needs a store in",
        ),
    ],
)
def test_each_difference_between_nodes_is_a_problem(there: NodeReport, problem: str) -> None:
    (found,) = problems_of(there, HERE, processes=4, nodes=2, taken={"GPU-2": "node second"})
    assert problem in found


def test_nodes_may_have_other_processors_and_more_devices() -> None:
    gpus = Devices(gpus=3, cores=4, ids=("GPU-3", "GPU-4", "GPU-2"))  # It trains on the first two.
    there = replace(HERE, host="second", processor="Xeon", devices=gpus, clock=9.0)
    assert list(problems_of(there, HERE, processes=4, nodes=2, taken={"GPU-2": "node third"})) == []


def guest(address: Address, gpu: str) -> None:
    """A node that has this GPU, and leaves when it hears that it or another is refused."""
    line = Line(socket.create_connection((address.host, address.port), timeout=10))
    line.introduce(KEY.encode())
    words, _ = line.receive()
    report = look(QUESTION.validate_python(words["question"]))
    line.send(REPORT.dump_python(replace(report, devices=Devices(1, 8, (gpu,))), mode="json"))
    with suppress(LineEnded):
        line.receive()
    line.close()


def test_two_nodes_with_one_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        meeting, "look", lambda question: replace(look(question), devices=Devices(1, 8, ("GPU-1",)))
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    place = meeting.Meeting(4, 4, address, KEY.encode(), VARIABLE, start_seconds=60.0)
    guests = list[threading.Thread]()

    def bring(_what: str, _seconds: float, _news: str) -> None:
        if not guests:
            for gpu in ("GPU-1", "GPU-2", "GPU-2"):
                guests.append(threading.Thread(target=guest, args=(address, gpu)))
                guests[-1].start()

    with pytest.raises(ConfigError) as refused:
        meet(place, tmp_path, [], go_on, bring)
    for each in guests:
        each.join()
    name = f"node {socket.gethostname()} (127.0.0.1)"
    _, *problems = str(refused.value).splitlines()
    same = "it would train on the same GPUs as"
    assert sorted(problem.partition(": start")[0].strip() for problem in problems) == [
        f"{name}: {same} {name}",
        f"{name}: {same} the machine that computes the stage",
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
    met = meet(
        meeting.Meeting(2, 2, Address(other.host, 0), secrets.token_bytes(32), "", 60.0, other),
        tmp_path,
        [tmp_path],
        go_on,
        unheard,
    )
    assert [each.node for each in met.nodes] == [f"{socket.gethostname()} (127.0.0.1)"]
    met.nodes[0].end()
    assert other.thread is not None
    other.thread.join()
    assert other.ends == ["The training has ended (it has closed the connection); so have the ranks here."]


def test_strangers_neither_end_the_wait_for_a_node_nor_hold_it_up(tmp_path: Path) -> None:
    """Fifty say nothing, others anything, some have another key; then the node comes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    ends = list[str]()
    threads = list[threading.Thread]()

    def show_another_key() -> None:
        line = Line(socket.create_connection((address.host, address.port), timeout=10))
        with pytest.raises(OtherKey):
            line.introduce(b"another key for tests")
        line.close()

    with ExitStack() as strangers:

        def come() -> None:
            if threads:
                return
            others = [threading.Thread(target=show_another_key) for _ in range(3)]
            node = threading.Thread(target=lambda: ends.append(take_part(address, KEY.encode())))
            threads.extend([*others, node])
            strangers.enter_context(visited(address.host, address.port, HOSTILE))
            for each in others:
                each.start()
            for each in others:
                each.join()
            node.start()

        place = meeting.Meeting(2, 2, address, KEY.encode(), VARIABLE, start_seconds=60.0)
        # While it waits, it asks whether it was stopped; `come` lets others serve the wait meanwhile.
        beside = threading.Thread(target=come)

        def go_on_and_let_come() -> None:
            if beside.ident is None:
                beside.start()

        met = meet(place, tmp_path, [], go_on_and_let_come, unheard)
        beside.join()
    assert [each.node for each in met.nodes] == [f"{socket.gethostname()} (127.0.0.1)"]
    met.nodes[0].end()
    threads[-1].join()
    assert ends == ["The training has ended (it has closed the connection); so have the ranks here."]


def test_the_message_at_the_limit_says_how_many_had_another_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("127.0.0.1", free.getsockname()[1])

    def come() -> None:
        for _ in range(2):
            line = Line(socket.create_connection((address.host, address.port), timeout=10))
            with pytest.raises(OtherKey):
                line.introduce(b"another key for tests")
            line.close()

    beside = threading.Thread(target=come)

    def go_on_and_let_come() -> None:
        if beside.ident is None:
            beside.start()

    place = meeting.Meeting(2, 2, address, KEY.encode(), VARIABLE, start_seconds=2.0)
    said = rf"they had another key: 2 from 127.0.0.1\. If one of them is a node: .* {VARIABLE} must hold"
    with pytest.raises(ConfigError, match=said):
        meet(place, tmp_path, [], go_on_and_let_come, unheard)
    beside.join()


def test_nothing_that_listens_there_ends_a_trainer_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "_RETRY_SECONDS", 0.0)
    stop, told = threading.Event(), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        address = Address(*server.getsockname())
        serving = pool.submit(node_module.serve, address, KEY.encode(), told.append, stop)
        try:
            for said in HOSTILE:
                caller, _ = server.accept()
                with caller, suppress(OSError):  # It may leave in the middle.
                    caller.sendall(said)
                    caller.shutdown(socket.SHUT_WR)
                    while caller.recv(4096):
                        pass
        finally:
            stop.set()
        serving.result(60.0)
    assert f"{address} has another key than this node; trying again." in told
    assert "No training can be joined there now (it speaks another protocol); trying again." in told

"""Which reports of a node make it unfit for a run."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from pathlib import Path

import pytest

from flows.ray.nodes import (
    CLOCK_SECONDS,
    ClusterNode,
    NodeQuestion,
    NodeReport,
    look,
    problems_of,
    require_one_kind_of_gpu,
)
from storage.artifacts.layout import StagingFolder
from storage.errors import ConfigError

HERE = NodeReport(
    host="driver",
    python="3.11.9",
    processor="EPYC",
    versions={"torch": "2.13.0", "numpy": "2.3.5"},
    code="c0de",
    plugins={"lake": "1a4e"},
    store="",
)


@pytest.mark.parametrize(
    ("node", "offset", "problem"),
    [
        (replace(HERE, python="3.11.7"), 0.0, "Python is 3.11.7, here 3.11.9"),
        (
            replace(HERE, versions={"torch": "2.12.1", "numpy": "2.3.5"}),
            0.0,
            "package torch is 2.12.1, here 2.13",
        ),
        (
            replace(HERE, versions={"torch": "2.13.0"}),
            0.0,
            "numpy is missing, here 2.3.5: pip install numpy==2.3.5",
        ),
        (replace(HERE, code="0ther"), 0.0, "the code of erl-pipeline differs"),
        (replace(HERE, plugins={"lake": ""}), 0.0, "plug-in lake, which the run uses, is missing"),
        (replace(HERE, plugins={"lake": "2b5f"}), 0.0, "the code of plug-in lake differs"),
        (
            replace(HERE, store="cannot be used: it is full"),
            0.0,
            "store s3://runs cannot be used: it is full",
        ),
        (HERE, CLOCK_SECONDS + 1, "its clock is +11 s off"),
        (HERE, -CLOCK_SECONDS - 1, "its clock is -11 s off"),
    ],
)
def test_each_difference_that_matters_is_a_problem(node: NodeReport, offset: float, problem: str) -> None:
    (found,) = problems_of(node, HERE, offset, "s3://runs")
    assert problem in found


def test_what_does_not_decide_bytes_is_none() -> None:
    """A different host or kind of processor, a package that the driver lacks, a clock that is slightly
    off."""
    node = replace(HERE, host="node", processor="Xeon", versions={**HERE.versions, "vllm": "0.32.0"})
    assert list(problems_of(node, HERE, CLOCK_SECONDS - 1, "s3://runs")) == []


def asked(store: Path, *packages: str) -> NodeQuestion:
    return NodeQuestion(packages, str(store), "probe/driver", b"the driver was here", "probe/node")


def test_a_node_finds_the_drivers_file_and_leaves_its_own(tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "driver").write_bytes(b"the driver was here")
    report = look(asked(tmp_path, "erl_pipeline.methods.erl", "no_such_plugin"))
    assert report.store == ""
    assert (tmp_path / "probe" / "node").read_bytes() == b"the driver was here"
    assert report.plugins["erl_pipeline.methods.erl"]
    assert report.plugins["no_such_plugin"] == ""
    assert {"torch", "numpy", "polars"} <= set(report.versions)


def test_another_folder_at_the_same_path_is_noticed_and_nothing_is_written_there(tmp_path: Path) -> None:
    report = look(asked(tmp_path / "store"))
    assert report.store.startswith("is not the one that the driver sees")
    assert list(tmp_path.iterdir()) == []


def test_a_store_whose_locks_other_nodes_do_not_see_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS that is mounted with `nolock`, where each machine keeps its locks to itself."""
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "driver").write_bytes(b"the driver was here")
    with StagingFolder(tmp_path / "staging") as held:
        question = replace(asked(tmp_path), held=held.path.name)
        assert look(question).store == ""
        (tmp_path / "probe" / "node").unlink()
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
        assert look(question).store.startswith("does not share locks")


def test_equal_bytes_need_one_kind_of_gpu() -> None:
    kinds = [("1", 8.0, "H100"), ("2", 8.0, "H100"), ("3", 0.0, "")]
    nodes = [ClusterNode(number, f"10.0.0.{number}", 8.0, gpus, 0.0, kind) for number, gpus, kind in kinds]
    require_one_kind_of_gpu(nodes)
    with pytest.raises(ConfigError, match=r"the cluster has A100, H100: use nodes of one kind"):
        require_one_kind_of_gpu([*nodes, ClusterNode("4", "10.0.0.4", 8.0, 8.0, 0.0, "A100")])

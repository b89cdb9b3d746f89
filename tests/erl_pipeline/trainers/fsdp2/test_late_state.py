"""The state of an optimizer that ranks write beside what comes next: its bytes, and who waits for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from erl_pipeline.policies import checkpoint_files
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.fsdp2.trainer import Fsdp2Trainer
from storage.artifacts.late_files import LateFiles, WatchedFiles, wait_until_whole
from storage.errors import Interrupted, PipelineError, StoreError
from tests.erl_pipeline.trainers.fsdp2.forked_ranks import forked_ranks
from tests.erl_pipeline.trainers.fsdp2.rows import ROWS, Start, reinforcement

HELD = """
from pathlib import Path
from storage.artifacts.late_files import LateFiles
from tests.late_writing import slowed
from tests.waiting import wait_for

LateFiles.begin = slowed(lambda: wait_for("the end of the pause", Path({goes_on!r}).exists, interval=0.01))
"""

NO_ROOM = """
from erl_pipeline.trainers.fsdp2.sleeping import SleepingTensors


def no_room(self, tensors):
    raise RuntimeError("no pinned host memory")


SleepingTensors.sleep = no_room
"""


@pytest.fixture
def goes_on(tmp_path: Path) -> Iterator[Path]:
    """Ranks that start now write the first part of each late file, and the others once this file exists: it
    stands for a slow disk. They cannot sleep."""
    path = tmp_path / "goes-on"
    with forked_ranks(HELD.format(goes_on=str(path)), NO_ROOM):
        yield path


@pytest.fixture
def begun(
    first: Path, start: Start, tmp_path: Path, goes_on: Path
) -> Callable[[int], tuple[RankGroup, Fsdp2Trainer, dict[str, int]]]:
    """So many ranks that have updated a policy, have saved it in `saved`, and write its state into `late`."""

    def make(processes: int) -> tuple[RankGroup, Fsdp2Trainer, dict[str, int]]:
        group = RankGroup(processes, 1, tmp_path / "scratch")
        trainer = Fsdp2Trainer(processes, start(first / "llama", dtype="bfloat16"), group)
        trainer.reinforce(reinforcement())
        trainer.save(tmp_path / "saved")
        (tmp_path / "late").mkdir()
        return group, trainer, trainer.begin_state(tmp_path / "late", LateFiles())

    return make


def test_it_is_that_of_before_the_next_update_and_ranks_end_after_it(
    begun: Callable[[int], tuple[RankGroup, Fsdp2Trainer, dict[str, int]]],
    goes_on: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In more files than there are ranks: the first two have begun, and the others have their names."""
    monkeypatch.setattr(checkpoint_files, "FILE_BYTES", 40_000)
    group, trainer, sizes = begun(2)
    saved = {path.name: path.read_bytes() for path in (tmp_path / "saved").glob("optimizer*.safetensors")}
    assert sizes == {name: len(content) for name, content in saved.items()}
    assert len(saved) > 2
    assert trainer.reinforce(reinforcement()).optimizer_steps > 0
    late = {name: tmp_path / "late" / name for name in sizes}
    assert all(path.stat().st_size < sizes[name] for name, path in late.items())

    ending = threading.Thread(target=group.finish)
    ending.start()
    ending.join(0.5)
    assert ending.is_alive()
    goes_on.touch()
    for name, path in late.items():
        wait_until_whole(path, sizes[name])
    ending.join(60)
    assert not ending.is_alive()
    assert not group.alive()
    assert {name: path.read_bytes() for name, path in late.items()} == saved


def _stop(_step: int, _loss: float) -> None:
    raise Interrupted


def _stopped(trainer: Fsdp2Trainer) -> None:
    trainer.reinforce(reinforcement(), _stop)


def _failing(trainer: Fsdp2Trainer) -> None:
    """The vocabulary lacks the token."""
    trainer.logprobs([replace(row, prompt_token_ids=(10**6,)) for row in ROWS], 12)


def _unable_to_sleep(trainer: Fsdp2Trainer) -> None:
    assert trainer._group is not None
    trainer._group.sleeps = True
    trainer._group.make_room()


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (_stopped, (Interrupted, None)),
        (_failing, (PipelineError, "index out of range")),
        (_unable_to_sleep, (PipelineError, "no pinned host memory")),
    ],
)
def test_a_failure_of_what_comes_next_does_not_spoil_it(
    work: Callable[[Fsdp2Trainer], None],
    error: tuple[type[Exception], str | None],
    begun: Callable[[int], tuple[RankGroup, Fsdp2Trainer, dict[str, int]]],
    goes_on: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk goes on only when the failure waits for it."""
    wait = WatchedFiles.wait

    def waited(files: WatchedFiles) -> None:
        goes_on.touch()
        wait(files)

    monkeypatch.setattr(WatchedFiles, "wait", waited)
    group, trainer, sizes = begun(1)
    [(name, size)] = sizes.items()
    (tmp_path / "late").rename(tmp_path / "placed")
    with pytest.raises(error[0], match=error[1]):
        work(trainer)
    assert not group.alive()
    assert (tmp_path / "placed" / name).stat().st_size == size
    wait_until_whole(tmp_path / "placed" / name, size)


def test_who_waits_for_a_killed_rank_is_told(
    begun: Callable[[int], tuple[RankGroup, Fsdp2Trainer, dict[str, int]]], tmp_path: Path
) -> None:
    group, trainer, sizes = begun(1)
    [(name, size)] = sizes.items()
    os.kill(group.process_ids[0], signal.SIGKILL)
    with pytest.raises(StoreError, match=r"optimizer.safetensors was not written whole: the process"):
        wait_until_whole(tmp_path / "late" / name, size)
    group.finish()
    assert not trainer.lasts()

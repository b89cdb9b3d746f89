"""The ranks that a worker process keeps between trainings."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from erl_pipeline.policies.hardware import training_device
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup


class KeptRanks:
    """Groups of ranks, each lent to one trainer at a time, perhaps for several stages. A trainer that is lent
    one loads its checkpoint there, whatever the group has held. They end with the context."""

    def __init__(self) -> None:
        self._idle: list[tuple[Hashable, RankGroup]] = []
        self._lent: list[tuple[Hashable, RankGroup]] = []

    def lend(self, like: Hashable, start: Callable[[], RankGroup]) -> RankGroup:
        """A group that is like this, and was started by `start` if none was there. Others that are idle
        end."""
        idle, self._idle = self._idle, []
        fit = next((group for key, group in idle if key == like and group.alive()), None)
        for _, group in idle:
            if group is not fit:
                group.finish()
        group = fit or start()
        self._lent.append((like, group))
        return group

    def give_back(self, group: RankGroup) -> None:
        """Let the next trainer have a group; end one that no trainer can have. Does nothing if it is not
        lent."""
        given = [each for each in self._lent if each[1] is group]
        self._lent = [each for each in self._lent if each[1] is not group]
        if given and group.alive():
            self._idle += given
        elif given:
            group.finish()

    def leave_devices_to(self, group: RankGroup) -> None:
        """Have the other groups that trainers hold release their GPUs before this one works: each may hold a
        model, and two may not fit. Those that cannot sleep would end, and keep theirs."""
        if training_device().type == "cuda":
            for _, other in self._lent:
                if other is not group and other.sleeps:
                    other.make_room()

    def make_room(self) -> None:
        """Have all groups release GPUs; see `erl_pipeline.trainers.interface.KeptProcesses`."""
        if training_device().type == "cuda":
            for _, group in (*self._idle, *self._lent):
                group.make_room()

    def __enter__(self) -> KeptRanks:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        for _, group in (*self._idle, *self._lent):
            group.finish()
        self._idle, self._lent = [], []

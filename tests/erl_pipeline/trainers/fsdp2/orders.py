"""What ranks are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.trainers.fsdp2 import work
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup


class Orders:
    """What groups of this process were told to do, and the processes of their ranks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.groups: list[RankGroup] = []
        self.processes: set[int] = set()
        do = RankGroup.do

        def noted(group: RankGroup, told: work.Work, *rest: Any) -> Path:
            if group not in self.groups:
                self.groups.append(group)
            self.done.append(told.do)
            found = do(group, told, *rest)
            self.processes |= set(group.process_ids.values())
            return found

        monkeypatch.setattr(RankGroup, "do", noted)

"""What follows from an artifact alone, kept for those that were looked at last: an artifact never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

MOST_ARTIFACTS = 3
"""Artifacts of which something is kept: of a memory of a million entries that is about 150 MB each."""

T = TypeVar("T")


@dataclass
class _Place:
    making: threading.Lock = field(default_factory=threading.Lock)
    made: list[Any] = field(default_factory=list)


class Sealed:
    """Things made of artifacts. Several threads may ask for one at once; it is made once."""

    def __init__(self, most: int = MOST_ARTIFACTS) -> None:
        self._most = most
        self._artifacts: OrderedDict[str, dict[str, _Place]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, artifact_id: str, what: str, make: Callable[[], T]) -> T:
        """Something of an artifact, made where it is not there yet. What `make` raises is not kept."""
        with self._turn:
            place = self._artifacts.setdefault(artifact_id, {}).setdefault(what, _Place())
            self._artifacts.move_to_end(artifact_id)
            while len(self._artifacts) > self._most:
                self._artifacts.popitem(last=False)
        with place.making:
            if not place.made:
                place.made.append(make())
            value: T = place.made[0]
            return value

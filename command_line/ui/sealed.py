"""Values that are computed from one artifact, kept for the last few artifacts: an artifact never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

MOST_ARTIFACTS = 3
"""Most artifacts whose values are kept: for a memory of a million entries they take about 150 MB each."""

T = TypeVar("T")


@dataclass
class _Place:
    making: threading.Lock = field(default_factory=threading.Lock)
    made: list[Any] = field(default_factory=list)


class Sealed:
    """Values made from artifacts. Several threads may ask for one at the same time; it is made once."""

    def __init__(self, most: int = MOST_ARTIFACTS) -> None:
        self._most = most
        self._artifacts: OrderedDict[str, dict[str, _Place]] = OrderedDict()
        self._turn = threading.Lock()

    def get(self, artifact_id: str, what: str, make: Callable[[], T]) -> T:
        """The value `what` of an artifact, made by `make` if it is not kept yet. If `make` raises, nothing is
        kept."""
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

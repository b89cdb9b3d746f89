"""A description of the first difference between two files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class ContentDifference:
    """The first difference between a file of one artifact and the same file of another.

    `row` is the number of the row, from 0; `place` has the columns by which people recognise it; `token` is a
    position in a list. In a tensor, `position` is the index of the first element that differs, `count` the
    number of elements that differ, and `largest` the largest difference. `a` and `b` are the two values, as
    text.
    """

    file: str
    kind: Literal["file", "row", "tensor"]
    what: str
    """What differs, in words, such as `column reward`, `token 3 of response_token_ids`, `tensor
    lm_head.weight`."""
    a: str = ""
    b: str = ""
    row: int | None = None
    place: Mapping[str, Any] = field(default_factory=dict)
    column: str = ""
    token: int | None = None
    tensor: str = ""
    position: tuple[int, ...] = ()
    count: int | None = None
    largest: float | None = None

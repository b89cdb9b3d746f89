"""Rules of retention: which iterations of a run keep their big files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from storage.errors import InputError

Kept = Literal["checkpoints", "optimizer", "trajectories"]
"""What a rule is about: weights, optimizer states, or the rows of rollouts."""

_RULE = re.compile(r"(\d{1,9})|(\d{1,9}),every:(\d{1,9})|every:(\d{1,9})")


@dataclass(frozen=True)
class RetentionRule:
    """Which iterations keep their files: the `last` few, and multiples of `every`. `origin` names the option
    or setting that gave the rule, up to the kind that follows it."""

    text: str
    last: int
    every: int | None = None
    origin: str = "--retain-"

    def kept(self, iterations: Iterable[int]) -> set[int]:
        """The iterations of a run that keep their files; the last one always does."""
        ordered = sorted(set(iterations))
        kept = set(ordered[-self.last :])
        return kept | {number for number in ordered if self.every and number % self.every == 0}

    def reason(self, kind: Kept) -> str:
        """The reason that a record of pruned files gives."""
        return f"the rule {self.origin}{kind} {self.text}"


def parse_rule(text: str, origin: str = "--retain-") -> RetentionRule:
    """`N`, `every:K` or `N,every:K`. Raises InputError for anything else."""
    found = _RULE.fullmatch(text.strip())
    numbers = [int(number) if number else None for number in found.groups()] if found else [0]
    if 0 in numbers:
        raise InputError(
            f"{text!r} is not a retention rule: give a number of last iterations to keep, at least 1, "
            "or every:K, or both as in 3,every:10."
        )
    last, both, every, every_alone = numbers
    return RetentionRule(text.strip(), last or both or 1, every or every_alone, origin)

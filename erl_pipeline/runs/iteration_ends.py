"""Calling functions whenever all stages of an iteration are recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from erl_pipeline.plan.job import StageOutcome
from erl_pipeline.plan.plan import Place, Plan


class IterationEnds:
    """Takes outcomes, and calls functions with the number of each iteration that is then complete.

    Args:
        trusted: places of the plan for which no outcome will come.
        calls: the functions, called in this order; an error that one raises ends the run.
    """

    def __init__(
        self, plan: Plan, trusted: Collection[Place], calls: Sequence[Callable[[int], None]]
    ) -> None:
        self._calls = calls
        self._pending: defaultdict[int, set[Place]] = defaultdict(set)
        for node in plan.nodes:
            if node.place not in trusted:
                self._pending[node.place.iteration].add(node.place)

    def take(self, outcome: StageOutcome) -> None:
        """Take the outcome of an artifact that is now recorded."""
        place = Place(outcome.iteration or 0, outcome.stage, outcome.key)
        pending = self._pending[place.iteration]
        if place not in pending:
            return
        pending.remove(place)
        if not pending:
            for call in self._calls:
                call(place.iteration)

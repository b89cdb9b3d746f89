"""How long a cold start trains, and at which learning rates."""

from __future__ import annotations

from erl_pipeline.config.policy import ColdStartConfig

_FALLS_AFTER = 0.6  # share of the steps after which the learning rates fall
_LAST_RATE = 0.05  # what they fall to, as a share of their peak
_EXAMINED_EVERY = 50  # steps


class Schedule:
    """Steps at full learning rates, then steps in which they fall.

    With a gate the first part continues until all examinations are passed, or the most steps are reached: a
    skill that has not emerged at full rates does not emerge when they fall.
    """

    def __init__(self, settings: ColdStartConfig, *, gated: bool) -> None:
        self._settings = settings
        self._gated = gated
        self._falls_from = round(_FALLS_AFTER * settings.steps)
        self._falling = settings.steps - self._falls_from

    @property
    def steps(self) -> int:
        """The total number of steps expected so far."""
        return self._falls_from + self._falling

    def examination_due(self, done: int) -> bool:
        """Whether the policy has to be examined after `done` steps."""
        return self._gated and done == self._falls_from

    def examined(self, done: int, share_right: float) -> None:
        """Continue at full rates where too little was right, in the worst examination, and steps are left."""
        more = min(_EXAMINED_EVERY, self._settings.limit - self.steps)
        if share_right < self._settings.gate and more > 0:
            self._falls_from = done + more
        else:
            self._gated = False

    def rate(self, done: int) -> float:
        """The learning rates as a share of their peaks, after `done` steps."""
        if done < self._falls_from:
            return 1.0
        return 1.0 - (1.0 - _LAST_RATE) * (done - self._falls_from) / self._falling

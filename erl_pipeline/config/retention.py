"""Settings that say what a run keeps of its old iterations."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from erl_pipeline.config.base import Settings
from storage.errors import InputError
from storage.upkeep.rules import Kept, RetentionRule, parse_rule

_ORIGIN = "retention."


def _as_text(value: Any) -> Any:
    """The rule as text: YAML reads a rule such as `3` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _require_rule(text: str) -> str:
    try:
        return parse_rule(text, _ORIGIN).text
    except InputError as error:
        raise ValueError(str(error)) from error


Rule = Annotated[str, BeforeValidator(_as_text), AfterValidator(_require_rule)]
"""`N`, `every:K` or `N,every:K`."""


class RetentionConfig(Settings):
    """What a run keeps of its old iterations. Each kind of file has a rule: the last `N` iterations;
    `every:K`, which keeps those that K divides and the last; or both, as in `2,every:10`. `null` keeps all.
    The driver applies the rules after each iteration, and scheduled maintenance applies them too. A file is
    removed only if no other run's ledger names its artifact and nothing is still to be made from it.
    Manifests, ids and lineage stay. No artifact depends on these rules, and a run can be continued with
    others; removed files do not come back."""

    checkpoints: Rule | None = None
    """Weights. Old ones are needed to evaluate, branch from or audit old iterations."""
    optimizer: Rule | None = None
    """States of the optimizer, often larger than the weights. Old ones are needed only to branch from old
    iterations or audit their updates."""
    trajectories: Rule | None = None
    """Tokens and texts of rollouts; rewards, ids and what lineage needs are kept. A run that keeps experience
    to replay (ExGRPO, Complementary RL) keeps all its rollouts."""

    def rules(self) -> dict[Kept, RetentionRule]:
        """The rules that are set."""
        given: dict[Kept, str | None] = {
            "checkpoints": self.checkpoints,
            "optimizer": self.optimizer,
            "trajectories": self.trajectories,
        }
        return {kind: parse_rule(text, _ORIGIN) for kind, text in given.items() if text is not None}

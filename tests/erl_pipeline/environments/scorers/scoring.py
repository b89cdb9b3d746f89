"""What a built-in scorer says of an answer."""

from __future__ import annotations

from typing import Any

from erl_pipeline.environments.scorers import checked_score, scorer_named


def score(name: str, right: str, said: str | None, **fields: Any) -> float:
    return checked_score(scorer_named(name), said, {"answer": right, **fields}).score


def remark(name: str, right: str, said: str) -> str:
    return checked_score(scorer_named(name), said, {"answer": right}).remark

"""Settings of what training on served traffic learns from people's words."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from erl_pipeline.config.base import Settings


def whose_notes(value: Any) -> Any:
    """The value of `reflect`, which may also be `off` (YAML's false) or `on` (true)."""
    if value is False:
        return None
    return "user" if value is True else value


class ServedFeedbackConfig(Settings):
    """What training on the stored traffic of a served policy learns from what people said, besides their
    ratings."""

    corrections: bool = False
    """Whether answers that people have corrected are trained by supervision, after the update, with the
    settings of `fine_tune`. Only for training on served traffic, which `learn` does."""
    reflect: Annotated[Literal["user", "run"] | None, BeforeValidator(whose_notes)] = None
    """Whether the policy reflects on conversations that people did not like or spoke about; `learn` then adds
    its reflections to the memory of the run that serves. `user`, or `on`: as notes for the same user alone.
    `run`: for everybody. Only for training on served traffic, by a method with a memory of reflections."""

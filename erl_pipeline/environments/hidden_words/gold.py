"""A way over a board as turns of a policy that knows the hidden words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from erl_pipeline.environments.hidden_words.directions import Direction


def turns_of(
    way: Sequence[Direction],
    actions: Mapping[str, Direction],
    form: Literal["prose", "compact"],
    action_mode: Literal["step", "plan"],
) -> list[str]:
    """One turn for each direction, or with `plan` one for all of them.

    Args:
        actions: each action word with the direction that it moves in.
        form: as the environment's setting `format`; `compact` says the direction before the word.
    """
    words = {direction: word for word, direction in actions.items()}
    if form == "compact":
        moves = [f"{direction} {words[direction]}" for direction in way]
        return moves if action_mode == "step" else [" ".join(moves)]
    if action_mode == "step":
        return [f"[{words[direction]}]" for direction in way]
    return [f"[{' '.join(words[direction] for direction in way)}]"]

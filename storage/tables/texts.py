"""What the policy said in a trajectory, as expressions over the columns of trajectories."""

from __future__ import annotations

import json

import polars as pl

_MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))


def said() -> pl.Expr:
    """The policy's own turns, a line break between them; null where the messages were pruned."""
    return _turns(pl.col("messages"))


def says(text: str) -> pl.Expr:
    """Whether the policy said something; the case of letters counts."""
    # As JSON has it: messages without it need not be parsed.
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    likely = pl.when(pl.col("messages").str.contains(escaped, literal=True)).then(pl.col("messages"))
    return _turns(likely).str.contains(text, literal=True).fill_null(False)


def _turns(messages: pl.Expr) -> pl.Expr:
    message = pl.element().struct
    own = pl.element().filter(message.field("role") == "assistant").struct.field("content")
    return messages.str.json_decode(_MESSAGES).list.eval(own).list.join("\n")

"""Polars expressions, over the columns of trajectories, for the policy's own messages."""

from __future__ import annotations

import json

import polars as pl

_MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))


def said() -> pl.Expr:
    """The policy's own turns, with a line break between them; null if the messages were pruned."""
    return _turns(pl.col("messages"))


def says(text: str) -> pl.Expr:
    """Whether the policy's own turns contain a text; upper and lower case differ."""
    # Messages whose JSON does not hold the escaped text need not be parsed.
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    likely = pl.when(pl.col("messages").str.contains(escaped, literal=True)).then(pl.col("messages"))
    return _turns(likely).str.contains(text, literal=True).fill_null(False)


def _turns(messages: pl.Expr) -> pl.Expr:
    message = pl.element().struct
    own = pl.element().filter(message.field("role") == "assistant").struct.field("content")
    return messages.str.json_decode(_MESSAGES).list.eval(own).list.join("\n")

"""An artifact or a row, with what it came from, as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text
from rich.tree import Tree

from command_line.output import command, print_json, print_line, wide_console
from command_line.selectors import artifact_or_row
from storage.artifacts.store import ArtifactStore
from storage.lineage import LineageNode, explain
from storage.runs.run import RunStore

_LONGEST = 300
"""Most characters of a message of the thing asked for."""
_LINE = 100
_OF_ORIGINS = ("stage", "role", "task_id", "iteration", "reward", "success", "feedback", "text", "said")
"""Facts of origins that are printed, each on one line of `_LINE` characters; --json gives all."""


def show_origins(run: str, identifier: str, depth: int, store: str, json: bool) -> None:
    """Print an artifact or a row of a run, with what it came from in at most `depth` steps."""
    opened = RunStore(store).open(run)
    node = explain(ArtifactStore(store), opened, artifact_or_row(opened, identifier), depth)
    if json:
        print_json(asdict(node))
        return
    wide_console().print(_tree(node))
    if "episode_id" in node.facts:
        words = ["episodes", "show", node.facts["episode_id"], "--prompts"]
        print_line(f"The whole episode: {command(words, store)}")


def _tree(node: LineageNode) -> Tree:
    label = Text()
    if node.relation:
        label.append(f"{node.relation}: ", style="dim")
    label.append(node.kind.replace("_", " ") + " ", style="bold")
    label.append(node.id)
    if node.more:
        label.append(f"  ({'more with --depth' if node.more == 'deeper' else node.more})", style="dim")
    for name, value in _facts(node):
        label.append(f"\n{name}: ", style="dim")
        label.append(value)
    tree = Tree(label)
    for origin in node.origins:
        tree.children.append(_tree(origin))
    return tree


def _facts(node: LineageNode) -> list[tuple[str, str]]:
    """All facts and messages of the thing asked for; the main facts of its origins."""
    if node.relation:
        messages = node.facts.get("messages", [])
        facts = {**node.facts, **({"said": _last_words(messages), "text": ""} if messages else {})}
        chief = [(name, facts.get(name, "")) for name in _OF_ORIGINS]
        return [(name, _cut(value, _LINE)) for name, value in chief if value != ""]
    plain = {name: value for name, value in node.facts.items() if name not in ("messages", "text")}
    shown = [(name, _shown(value)) for name, value in plain.items() if value != ""]
    messages = node.facts.get("messages")
    if messages is None and "text" in node.facts:
        shown.append(("text", node.facts["text"]))
    return shown + [(f"[{each['role']}]", _cut(_content(each), _LONGEST)) for each in messages or ()]


def _last_words(messages: Sequence[dict[str, Any]]) -> str:
    """What the policy said last."""
    said = [_content(each) for each in messages if each["role"] == "assistant"]
    return said[-1] if said else ""


def _content(message: dict[str, Any]) -> str:
    """The text of a message, or the tools that it calls."""
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message.get("content") or (f"calls {', '.join(calls)}" if calls else "")


def _cut(value: Any, length: int) -> str:
    text = _shown(value)
    if length == _LINE:
        text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 4]} ..."


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(number)}" for name, number in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)

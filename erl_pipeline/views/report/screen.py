"""An episode laid out side by side: attempts, feedback, retrieved memory, reflections."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from erl_pipeline.config.base import NotInstalledSettings
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import FoundDocuments, Picture
from erl_pipeline.views.report.episodes import EpisodePart, Turn, episode_part
from storage.errors import InputError

_COMPARED_WORDS = 1500
"""The most words of a text that are compared with the attempt before."""

ColumnKind = Literal["attempt", "feedback", "memory", "text"]


@dataclass(frozen=True)
class Piece:
    """A piece of a text; `changed` if the attempt before does not have it."""

    text: str
    changed: bool


@dataclass(frozen=True)
class Answer:
    """What the environment or a tool said, and the documents in it, if there are any."""

    text: str
    found: FoundDocuments | None = None


@dataclass(frozen=True)
class ShownTool:
    """A tool call: the values of its arguments in pieces, and the tool's answer."""

    name: str
    arguments: Sequence[tuple[str, Sequence[Piece]]]
    answer: Answer


@dataclass(frozen=True)
class ShownTurn:
    """A turn of an attempt; `changed` if the same turn of the attempt before was different."""

    policy: Sequence[Piece]
    tools: Sequence[ShownTool]
    answer: Answer
    changed: bool

    @property
    def found(self) -> list[FoundDocuments]:
        """The lists of documents in the turn's answers, in order."""
        answers = [*(tool.answer for tool in self.tools), self.answer]
        return [answer.found for answer in answers if answer.found is not None]


@dataclass(frozen=True)
class EpisodeColumn:
    """One column of the screen. `training` is what updates did with the row; None if that was not read."""

    kind: ColumnKind
    title: str
    row: Mapping[str, Any]
    part: EpisodePart
    turns: Sequence[ShownTurn] = ()
    picture: Picture | None = None
    training: Sequence[Mapping[str, Any]] | None = None
    memory: Sequence[tuple[str, str]] = ()
    """The memory entries in the prompt: id and text, the best first."""

    @property
    def searches(self) -> int:
        """How many answers hold documents."""
        return sum(len(turn.found) for turn in self.turns)

    @property
    def found(self) -> list[str]:
        """The titles of all documents that were found, each once."""
        return self._titles(needed=False)

    @property
    def needed(self) -> list[str]:
        """Those among them that the task needs."""
        return self._titles(needed=True)

    def _titles(self, *, needed: bool) -> list[str]:
        lists = [found for turn in self.turns for found in turn.found]
        titles = (each.title for found in lists for each in found.documents if each.needed or not needed)
        return list(dict.fromkeys(titles))


@dataclass(frozen=True)
class Drawing:
    """How an environment shows a task: its picture of an attempt, and the documents in one of its messages.

    `problem` says why it cannot draw a task that it should be able to draw.
    """

    picture: Callable[[Sequence[str]], Picture] | None = None
    documents: Callable[[str], FoundDocuments | None] | None = None
    problem: str = ""


@dataclass(frozen=True)
class Screen:
    """The columns of an episode. `no_picture` says why the environment could not draw its picture; empty if
    it did, or if it has none."""

    columns: Sequence[EpisodeColumn]
    no_picture: str


def drawing_of(config: RunConfig | None, row: Mapping[str, Any]) -> Drawing:
    """How the environment of a run shows the task of a stored row."""
    if config is None or not row["task_payload"]:
        return Drawing()
    if isinstance(config.environment, NotInstalledSettings):
        return Drawing(
            problem=f"Environment {config.environment.type}, which draws this task, cannot be used here."
        )
    plugin = plugins("environments")[config.environment.type].value
    try:
        task = Task(row["task_id"], row["task_type"], row["environment"], json.loads(row["task_payload"]))
        part, own = plugin.part(config.environment, task)
    except (InputError, ValueError) as error:
        return Drawing(problem=_cannot(error))
    if part.plugin.drawing is None:
        return Drawing()
    picture, documents = part.plugin.drawing.picture, part.plugin.drawing.documents
    return Drawing(
        None if picture is None else lambda said: picture(part.settings, own, said),
        None if documents is None else lambda message: documents(part.settings, own, message),
    )


def episode_columns(
    rows: Sequence[Mapping[str, Any]],
    memory_texts: Mapping[str, str],
    drawing: Drawing,
    training: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> Screen:
    """An episode's trajectories, in order, side by side.

    Args:
        memory_texts: texts of memory entries by id.
        training: what updates did with each trajectory, by its id; None if that is not to be shown.
    """
    try:
        return _columns(rows, memory_texts, drawing, training)
    # Stored tasks may be imported, or made with other settings. They are then shown as text.
    except (InputError, KeyError, TypeError, ValueError) as error:
        if drawing.picture is None and drawing.documents is None:
            raise
        return _columns(rows, memory_texts, Drawing(problem=_cannot(error)), training)


def _columns(
    rows: Sequence[Mapping[str, Any]],
    memory_texts: Mapping[str, str],
    drawing: Drawing,
    training: Mapping[str, Sequence[Mapping[str, Any]]] | None,
) -> Screen:
    columns: list[EpisodeColumn] = []
    before: EpisodePart | None = None
    for row in rows:
        pruned = row["messages"] is None
        part = episode_part({**row, "messages": row["messages"] or "[]"}, memory_texts)
        done = None if training is None else training.get(row["trajectory_id"], ())
        if part.outcome:
            turns = [] if pruned else _turns(part, before, drawing)
            picture = None if pruned else _picture(drawing, row)
            columns.append(EpisodeColumn("attempt", part.title, row, part, turns, picture, done))
            before = part
            # Feedback on the last attempt led to nothing more, so it is shown with the attempt.
            if part.feedback and row is not rows[-1]:
                columns.append(EpisodeColumn("feedback", "Feedback", row, part))
            continue
        entries = list(zip(row["memory_entry_ids"] or (), part.memory, strict=False))
        if entries or row["memory_version"]:
            columns.append(EpisodeColumn("memory", "Retrieved memory", row, part, memory=entries))
        columns.append(EpisodeColumn("text", part.title, row, part, training=done))
    return Screen(columns, drawing.problem)


def _cannot(error: Exception) -> str:
    return f"The environment cannot draw this task ({type(error).__name__}: {error})."


def _picture(drawing: Drawing, row: Mapping[str, Any]) -> Picture | None:
    if drawing.picture is None or row["text"] is not None:
        return None
    messages = json.loads(row["messages"])
    return drawing.picture([message["content"] for message in messages if message["role"] == "assistant"])


def _turns(part: EpisodePart, before: EpisodePart | None, drawing: Drawing) -> list[ShownTurn]:
    earlier = () if before is None else before.turns
    return [
        _turn(turn, earlier[place] if place < len(earlier) else Turn("", ""), drawing, before is not None)
        for place, turn in enumerate(part.turns)
    ]


def _turn(turn: Turn, earlier: Turn, drawing: Drawing, compared: bool) -> ShownTurn:
    """A turn, compared with the same turn of the attempt before; `compared`: there is such an attempt."""

    def answer(text: str) -> Answer:
        return Answer(text, drawing.documents(text) if drawing.documents is not None else None)

    def pieces(before: str, after: str) -> list[Piece]:
        return changed_pieces(before, after) if compared and before != after else [Piece(after, False)]

    tools = []
    for place, tool in enumerate(turn.tools):
        other = earlier.tools[place] if place < len(earlier.tools) else None
        known = dict(other.arguments) if other is not None and other.name == tool.name else {}
        arguments = [(name, pieces(known.get(name, ""), value)) for name, value in tool.arguments]
        tools.append(ShownTool(tool.name, arguments, answer(tool.answer)))
    return ShownTurn(
        pieces(earlier.policy, turn.policy) if turn.policy else [],
        tools,
        answer(turn.environment),
        compared and _asked(turn) != _asked(earlier),
    )


def _asked(turn: Turn) -> list[object]:
    """What the policy said and called, without the answers to it."""
    return [turn.policy, *((tool.name, tuple(tool.arguments)) for tool in turn.tools)]


def changed_pieces(before: str, after: str) -> list[Piece]:
    """A text in pieces; those that an earlier text does not have are marked, word by word.

    Very long texts are not compared word by word: each is one piece, changed if the two differ.
    """
    old, new = _words(before), _words(after)
    if max(len(old), len(new)) > _COMPARED_WORDS:
        return [Piece(after, before != after)]
    pieces = []
    for what, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if start < end:
            pieces.append(Piece("".join(new[start:end]), what != "equal"))
    return pieces


def _words(text: str) -> list[str]:
    """The words of a text, each with the space after it."""
    words, word = [], ""
    for character in text:
        if word and word[-1].isspace() and not character.isspace():
            words.append(word)
            word = ""
        word += character
    return [*words, word] if word else words

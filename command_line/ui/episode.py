"""An episode laid out side by side: attempts, feedback, retrieved memory, reflections."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from command_line.episodes.reading import episode_training, find_episode, memory_texts
from command_line.ui.rows import row_files
from command_line.ui.stored import Stored, StoredRun
from erl_pipeline.config.installed import plugins
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Picture
from erl_pipeline.views.report.episodes import EpisodePart, TaskPicture, episode_part, in_order, task_picture
from storage.artifacts.manifest import Manifest
from storage.errors import InputError

_COMPARED_WORDS = 1500
"""Words of a text, at most, that are compared with those of the attempt before."""

ColumnKind = Literal["attempt", "feedback", "memory", "text"]


@dataclass(frozen=True)
class Piece:
    """A piece of a text; `changed` where the attempt before does not have it."""

    text: str
    changed: bool


@dataclass(frozen=True)
class ShownTurn:
    """A turn of an attempt; `changed` where the attempt before did something else in its place."""

    policy: Sequence[Piece]
    environment: str
    changed: bool


@dataclass(frozen=True)
class EpisodeColumn:
    """One column of the screen."""

    kind: ColumnKind
    title: str
    row: Mapping[str, Any]
    part: EpisodePart
    turns: Sequence[ShownTurn] = ()
    picture: Picture | None = None
    training: Sequence[Mapping[str, Any]] = ()
    memory: Sequence[tuple[str, str]] = ()
    """Entries that stood in the prompt: id and text, the best first."""


@dataclass(frozen=True)
class EpisodeScreen:
    """A whole episode; `rows` are its trajectories in order. `no_picture` says why the environment drew none,
    where it should have."""

    episode_id: str
    holder: Manifest
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[EpisodeColumn]
    task: TaskPicture
    payload: str
    no_picture: str
    solved: bool


def episode_screen(stored: Stored, run: StoredRun, iteration: int, identifier: str) -> EpisodeScreen:
    """An episode of an iteration, of training or of an evaluation.

    Raises InputError where the iteration has no such episode.
    """
    paths = {
        **row_files(stored, run, (iteration, iteration)),
        **row_files(stored, run, (iteration, iteration), held_out=True),
    }
    found, holder = find_episode(paths, identifier)
    rows = in_order(found)
    # What is replayed later is trained later, never before.
    later = [record.manifest for record in run.history if record.iteration >= iteration]
    training = episode_training(stored.artifacts, later, rows[0]["episode_id"])
    texts = memory_texts(stored.artifacts, rows)
    pictures, no_picture = _pictures(run, rows)
    columns: list[EpisodeColumn] = []
    before: EpisodePart | None = None
    for row, picture in zip(rows, pictures, strict=True):
        pruned = row["messages"] is None
        part = episode_part({**row, "messages": row["messages"] or "[]"}, texts)
        done = training.get(row["trajectory_id"], ())
        if part.outcome:
            turns = [] if pruned else _turns(part, before)
            columns.append(EpisodeColumn("attempt", part.title, row, part, turns, picture, done))
            before = part
            # What was said of the last attempt led to nothing more: it stands with the attempt.
            if part.feedback and row is not rows[-1]:
                columns.append(EpisodeColumn("feedback", "Feedback", row, part))
            continue
        entries = list(zip(row["memory_entry_ids"] or (), part.memory, strict=False))
        if entries or row["memory_version"]:
            columns.append(EpisodeColumn("memory", "Retrieved memory", row, part, memory=entries))
        columns.append(EpisodeColumn("text", part.title, row, part, training=done))
    return EpisodeScreen(
        rows[0]["episode_id"],
        holder,
        rows,
        columns,
        task_picture(json.loads(rows[0]["task_payload"] or "{}")),
        rows[0]["task_payload"] or "",
        no_picture,
        any(row["success"] for row in rows),
    )


def _pictures(run: StoredRun, rows: Sequence[Mapping[str, Any]]) -> tuple[list[Picture | None], str]:
    """The environment's pictures of attempts, where it draws any, and why there are none where it should."""
    nothing: list[Picture | None] = [None] * len(rows)
    first = rows[0]
    if run.config is None or not first["task_payload"]:
        return nothing, ""
    plugin = plugins("environments")[run.config.environment.type].value
    task = Task(first["task_id"], first["task_type"], first["environment"], json.loads(first["task_payload"]))
    try:
        part, own = plugin.part(run.config.environment, task)
        if part.plugin.picture is None:
            return nothing, ""
        return [_picture(part.plugin.picture, part.settings, own, row) for row in rows], ""
    # Stored tasks may be of other settings, or imported: the text is shown then.
    except (InputError, KeyError, TypeError, ValueError) as error:
        return nothing, f"The environment cannot draw this task ({type(error).__name__}: {error})."


def _picture(draw: Any, settings: Any, task: Task, row: Mapping[str, Any]) -> Picture | None:
    if row["messages"] is None or row["text"] is not None:
        return None
    said = [message["content"] for message in json.loads(row["messages"]) if message["role"] == "assistant"]
    picture: Picture = draw(settings, task, said)
    return picture


def _turns(part: EpisodePart, before: EpisodePart | None) -> list[ShownTurn]:
    shown = []
    for place, turn in enumerate(part.turns):
        if before is None:
            shown.append(ShownTurn([Piece(turn.policy, False)], turn.environment, False))
            continue
        earlier = before.turns[place].policy if place < len(before.turns) else ""
        changed = turn.policy != earlier
        pieces = changed_pieces(earlier, turn.policy) if changed else [Piece(turn.policy, False)]
        shown.append(ShownTurn(pieces, turn.environment, changed))
    return shown


def changed_pieces(before: str, after: str) -> list[Piece]:
    """A text in pieces, those marked that an earlier one does not have, word by word.

    Very long texts are not compared: they are one piece, changed where they differ.
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
    """Words, each with the space behind it."""
    words, word = [], ""
    for character in text:
        if word and word[-1].isspace() and not character.isspace():
            words.append(word)
            word = ""
        word += character
    return [*words, word] if word else words

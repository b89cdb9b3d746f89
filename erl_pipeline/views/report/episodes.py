"""An episode laid out for people: the one place where trajectories become the parts that the terminal, the
report and the page show."""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import polars as pl

from erl_pipeline.config.base import NotInstalledSettings
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.messages import without_thoughts
from erl_pipeline.environments.pictures import FoundDocuments, Picture
from erl_pipeline.episodes.roles import NEVER_TRAINED
from storage.errors import InputError
from storage.tables.scored import reason_is_scored, was_scored

ILL_FORMED = "ill_formed"
"""The finish reason of a text, such as a reflection, that the parser of its role could not read."""
_COMPARED_WORDS = 1500
"""The most words of a text that are compared with the attempt before."""

PartKind = Literal["attempt", "feedback", "memory", "text"]


@dataclass(frozen=True)
class Piece:
    """A piece of a text; `changed` if the attempt before does not have it."""

    text: str
    changed: bool


@dataclass(frozen=True)
class EnvironmentAnswer:
    """What the environment or a tool said, and the documents in it, if there are any."""

    text: str
    found: FoundDocuments | None = None


@dataclass(frozen=True)
class ToolUse:
    """A tool call: the values of its arguments in pieces, as JSON where they are not text, and the answer."""

    name: str
    arguments: Sequence[tuple[str, Sequence[Piece]]]
    answer: EnvironmentAnswer


@dataclass(frozen=True)
class EpisodeTurn:
    """What the policy said, the tools that it called, and the environment's answer, which is empty for the
    turn that ends the attempt; `changed` if the same turn of the attempt before was different."""

    policy: Sequence[Piece]
    tools: Sequence[ToolUse]
    answer: EnvironmentAnswer
    changed: bool

    @property
    def found(self) -> list[FoundDocuments]:
        """The lists of documents in the turn's answers, in order."""
        answers = [*(tool.answer for tool in self.tools), self.answer]
        return [answer.found for answer in answers if answer.found is not None]


@dataclass(frozen=True)
class EpisodePart:
    """An attempt, feedback on it, what memory gave, or a text such as a reflection."""

    kind: PartKind
    title: str
    row: Mapping[str, Any]
    outcome: str = ""
    """Of an attempt: `solved`, `failed` or `not scored`."""
    prompt: str = ""
    turns: Sequence[EpisodeTurn] = ()
    feedback: str = ""
    memory: Sequence[tuple[str, str]] = ()
    """The memory entries in the prompt: id and text, the best first."""
    text: str = ""
    picture: Picture | None = None
    training: Sequence[Mapping[str, Any]] | None = None
    """What updates did with the row; None if that was not read."""

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
class EpisodeParts:
    """The parts of an episode in order. `no_picture` says why the environment could not draw its picture;
    empty if it did, or if it has none."""

    parts: Sequence[EpisodePart]
    no_picture: str


@dataclass(frozen=True)
class Drawing:
    """How an environment shows a task: its picture of an attempt, and the documents in one of its messages.

    `problem` says why it cannot draw a task that it should be able to draw.
    """

    picture: Callable[[Sequence[str]], Picture] | None = None
    documents: Callable[[str], FoundDocuments | None] | None = None
    problem: str = ""


@dataclass(frozen=True)
class TaskPicture:
    """A task's payload for people: the rows of its board, empty if it has none, and all else as text. Where
    the payload says which symbols the policy reads, the board is in these."""

    board: Sequence[str]
    facts: Sequence[tuple[str, str]]


def task_picture(payload: Mapping[str, Any]) -> TaskPicture:
    """A task's payload, laid out for people."""
    facts = [(name.replace("_", " "), _words(value)) for name, value in payload.items() if name != "board"]
    return TaskPicture(_in_symbols(payload.get("board", ()), payload.get("symbols")), facts)


_LETTERS = {"S": "player", "F": "frozen", "H": "hole", "G": "goal"}
"""The letters of stored boards, and the names of the symbols that stand for them."""


def _in_symbols(board: Sequence[str], symbols: Any) -> Sequence[str]:
    if not isinstance(symbols, Mapping) or not set(_LETTERS.values()) <= set(symbols):
        return board
    seen = {letter: symbols[name] for letter, name in _LETTERS.items()}
    return ["".join(seen.get(letter, letter) for letter in row) for row in board]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    return ", ".join(map(_words, value)) if isinstance(value, list) else str(value)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of an episode, each after the row that led to it; one whose parent is not among them comes
    first. Needs `trajectory_id` and `parent_trajectory_id`."""
    following: dict[str | None, list[dict[str, Any]]] = {}
    known = {row["trajectory_id"] for row in rows}
    for row in rows:
        parent = row["parent_trajectory_id"]
        following.setdefault(parent if parent in known else None, []).append(row)
    ordered, waiting = [], following.get(None, [])
    while waiting:
        row, *waiting = waiting
        ordered.append(row)
        waiting = [*following.get(row["trajectory_id"], []), *waiting]
    return ordered


def outcomes(rows: pl.LazyFrame) -> pl.LazyFrame:
    """One row for each episode of some trajectories: its id, iteration, task and sample; whether it was a
    `success`; its `best` reward; whether it was `retried`; and its `outcome`, which is `solved` at the first
    attempt, `helped` at a later one, `failed`, or `not_scored` where the environment or its scorer failed, so
    that nobody knows."""
    first = pl.col("parent_trajectory_id").is_null()
    text = pl.col("text").is_not_null() | (pl.col("finish_reason") == ILL_FORMED)
    text |= pl.col("role").is_in(sorted(NEVER_TRAINED))
    return rows.group_by("episode_id").agg(
        pl.col("iteration", "task_id", "task_type", "sample_index").first(),
        success=pl.col("success").any(),
        best=pl.col("reward").max(),
        retried=(~first & ~text).any(),
        outcome=pl.when(pl.col("success").filter(first).any())
        .then(pl.lit("solved"))
        .when(pl.col("success").any())
        .then(pl.lit("helped"))
        .when(was_scored().all())
        .then(pl.lit("failed"))
        .otherwise(pl.lit("not_scored")),
    )


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


def episode_parts(
    rows: Sequence[Mapping[str, Any]],
    memory_texts: Mapping[str, str],
    drawing: Drawing,
    training: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> EpisodeParts:
    """An episode's trajectories, which must be in order, as parts.

    Args:
        memory_texts: texts of memory entries by id.
        training: what updates did with each trajectory, by its id; None if that is not to be shown.
    """
    try:
        return _parts(rows, memory_texts, drawing, training)
    # Stored tasks may be imported, or made with other settings. They are then shown as text.
    except (InputError, KeyError, TypeError, ValueError) as error:
        if drawing.picture is None and drawing.documents is None:
            raise
        return _parts(rows, memory_texts, Drawing(problem=_cannot(error)), training)


def _parts(
    rows: Sequence[Mapping[str, Any]],
    memory_texts: Mapping[str, str],
    drawing: Drawing,
    training: Mapping[str, Sequence[Mapping[str, Any]]] | None,
) -> EpisodeParts:
    parts: list[EpisodePart] = []
    before: EpisodePart | None = None
    for row in rows:
        messages = json.loads(row["messages"] or "[]")  # without messages where retention has pruned it
        spoken = next((i for i, each in enumerate(messages) if each["role"] == "assistant"), len(messages))
        prompt = "\n\n".join(message["content"] for message in messages[:spoken])
        title = _title(row["role"], row["revision_index"])
        done = None if training is None else training.get(row["trajectory_id"], ())
        ill_formed = row["finish_reason"] == ILL_FORMED
        if row["text"] is None and not ill_formed and row["role"] not in NEVER_TRAINED:
            said = [without_thoughts(each)["content"] for each in messages if each["role"] == "assistant"]
            picture = None if drawing.picture is None or not messages else drawing.picture(said)
            before = EpisodePart(
                "attempt",
                title,
                row,
                _outcome(row),
                prompt,
                episode_turns(messages[spoken:], before, drawing),
                row["feedback"] or "",
                picture=picture,
                training=done,
            )
            parts.append(before)
            # Feedback on the last attempt led to nothing more, so it is shown with the attempt alone.
            if before.feedback and row is not rows[-1]:
                parts.append(EpisodePart("feedback", "Feedback", row, feedback=before.feedback))
            continue
        # Imported trajectories may have seen entries of a memory that is not in this store.
        entries = [
            (entry_id, memory_texts.get(entry_id, f"{entry_id}: not in this store"))
            for entry_id in row["memory_entry_ids"] or ()
        ]
        if entries or row["memory_version"]:
            parts.append(EpisodePart("memory", "Retrieved memory", row, memory=entries))
        text = row["text"]
        if text is None:
            text = messages[spoken]["content"] if spoken < len(messages) else row["feedback"]
            title = f"{title}, {'ill-formed and not used' if ill_formed else 'no answer'}"
        parts.append(
            EpisodePart("text", title, row, "", prompt, memory=entries, text=text or "", training=done)
        )
    return EpisodeParts(parts, drawing.problem)


def _cannot(error: Exception) -> str:
    return f"The environment cannot draw this task ({type(error).__name__}: {error})."


def _outcome(row: Mapping[str, Any]) -> str:
    if not reason_is_scored(row["finish_reason"]):
        return "not scored"
    return "solved" if row["success"] else "failed"


def _title(role: str, revision: int) -> str:
    """The role in words, with the number of the revision from the second one on."""
    words = role.replace("_", " ").capitalize()
    return f"{words}, revision {revision}" if revision > 1 else words


def episode_turns(
    messages: Sequence[Mapping[str, Any]], before: EpisodePart | None, drawing: Drawing
) -> list[EpisodeTurn]:
    """Pair what the policy said and called with the answers that it got, and compare it with the same turn of
    the attempt before."""
    turns: list[EpisodeTurn] = []
    for place, message in enumerate(messages):
        if message["role"] == "assistant":
            following = list(takewhile(lambda each: each["role"] != "assistant", messages[place + 1 :]))
            earlier = (
                None if before is None else [*before.turns, _NO_TURN][min(len(turns), len(before.turns))]
            )
            turns.append(_turn(message, following, earlier, drawing))
    return turns


def _turn(
    message: Mapping[str, Any],
    following: Sequence[Mapping[str, Any]],
    earlier: EpisodeTurn | None,
    drawing: Drawing,
) -> EpisodeTurn:
    """A turn; `earlier` is the same turn of the attempt before, None where there is no such attempt."""

    def answer(text: str) -> EnvironmentAnswer:
        return EnvironmentAnswer(text, drawing.documents(text) if drawing.documents is not None else None)

    def pieces(old: str, new: str) -> list[Piece]:
        return [Piece(new, False)] if earlier is None or old == new else changed_pieces(old, new)

    # Imported conversations may have calls of another form.
    called = [(call.get("id"), call.get("function", call)) for call in message.get("tool_calls") or ()]
    known = {call_id for call_id, _ in called}
    answers = {each.get("tool_call_id"): each["content"] for each in following if each["role"] == "tool"}
    # A call that could not be read is part of what the policy said; its answer is among the others.
    others = [
        each["content"]
        for each in following
        if each["role"] != "tool" or each.get("tool_call_id") not in known
    ]
    tools = []
    for place, (call_id, function) in enumerate(called):
        arguments = function.get("arguments") or {}
        # Imported conversations may have the arguments as JSON text.
        named = arguments if isinstance(arguments, Mapping) else {"arguments": arguments}
        same = earlier.tools[place : place + 1] if earlier is not None else ()
        old = {
            name: whole(value)
            for tool in same
            if tool.name == function["name"]
            for name, value in tool.arguments
        }
        values = [(name, pieces(old.get(name, ""), _argument(value))) for name, value in named.items()]
        tools.append(ToolUse(function["name"], values, answer(answers.get(call_id, ""))))
    said = message["content"] or ""
    policy = pieces("" if earlier is None else whole(earlier.policy), said) if said else []
    changed = earlier is not None and _asked(policy, tools) != _asked(earlier.policy, earlier.tools)
    return EpisodeTurn(policy, tools, answer("\n".join(others)), changed)


_NO_TURN = EpisodeTurn((), (), EnvironmentAnswer(""), False)


def _asked(policy: Sequence[Piece], tools: Sequence[ToolUse]) -> list[object]:
    """What the policy said and called, without the answers to it."""
    return [whole(policy), *((tool.name, [(n, whole(v)) for n, v in tool.arguments]) for tool in tools)]


def whole(pieces: Sequence[Piece]) -> str:
    """The text that the pieces make."""
    return "".join(piece.text for piece in pieces)


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def changed_pieces(before: str, after: str) -> list[Piece]:
    """A text in pieces; those that an earlier text does not have are marked, word by word.

    Very long texts are not compared word by word: each is one piece, changed if the two differ.
    """
    old, new = _words_of(before), _words_of(after)
    if max(len(old), len(new)) > _COMPARED_WORDS:
        return [Piece(after, before != after)]
    pieces = []
    for what, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if start < end:
            pieces.append(Piece("".join(new[start:end]), what != "equal"))
    return pieces


def _words_of(text: str) -> list[str]:
    """The words of a text, each with the space after it."""
    return re.findall(r"\s+|\S+\s*", text)

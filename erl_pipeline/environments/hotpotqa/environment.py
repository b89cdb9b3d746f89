"""HotpotQA as an environment: turns of the policy in; pages, reward and true feedback out."""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from erl_pipeline.environments import messages as chat
from erl_pipeline.environments.hotpotqa import tool
from erl_pipeline.environments.hotpotqa.index import open_index
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tasks import Passage
from erl_pipeline.environments.interface import Embedders, Environment, Observation, Task, Transition
from erl_pipeline.environments.pictures import Document, FoundDocuments
from erl_pipeline.environments.threads import in_threads
from storage.errors import InputError

LAST_TURN = "This is the last turn: answer now."
SearchFunction = Callable[[str], Sequence[Passage]]
"""The pages for a query, the best first. It may block."""

_INSTRUCTIONS = {
    "template": (
        "Answer the question. Pages of an encyclopedia help; the tool search finds them. When you know the "
        "answer, write a last line that begins with Answer: and has the answer in as few words as possible. "
        "You have {turns} turns."
    ),
    "plain": (
        "Answer the question. Find what you do not know in an encyclopedia. Write one line in each turn, and "
        "nothing else: either\n"
        "Search: what to look for\n"
        "or, when you know the answer, in as few words as possible\n"
        "Answer: the answer\n"
        "For example, asked for the mayor of a town, write first\n"
        "Search: mayor of the town\n"
        "You have {turns} turns."
    ),
}


class HotpotQA:
    """The attempts of one episode. Its methods may block, for as long as a search takes."""

    def __init__(self, config: HotpotQAConfig, task: Task, search: SearchFunction) -> None:
        self._config = config
        self._task = task
        self._search = search
        self._record = tool.Record(frozenset(task.payload["supporting"]))

    @property
    def instructions(self) -> str:
        return _INSTRUCTIONS["plain" if self._config.is_plain else "template"].format(
            turns=self._config.max_turns
        )

    @property
    def tools(self) -> Sequence[chat.ToolSchema]:
        """Empty in the plain protocol, which the instructions explain."""
        return () if self._config.is_plain else (tool.SEARCH_TOOL,)

    def reset(self) -> Observation:
        self._record = tool.Record(frozenset(self._task.payload["supporting"]))
        return f"Question: {self._task.payload['question']}"

    def step(self, turn: chat.AssistantTurn) -> Transition:
        record = self._record
        found, bad = record.supporting_found, len(record.bad_calls)
        read = tool.read_plain_lines if self._config.is_plain else tool.read_tool_calls
        events: list[tool.Event] = []
        record.turns.append(events)
        messages = [self._do(action, events) for action in read(turn)]
        self._see_whether_it_is_over()
        metrics = {
            "searches": float(sum(isinstance(event, tool.SearchRecord) for event in events)),
            "bad_calls": float(len(record.bad_calls) - bad),
            "supporting_found": float(record.supporting_found - found),
        }
        verdict = record.verdict
        if record.ending is not None:
            metrics["exact_match"] = float(verdict is not None and verdict.exact)
            metrics["f1"] = 0.0 if verdict is None else verdict.f1
        else:
            left = turns_left(self._config.max_turns - len(record.turns))
            messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n{left}"}
        return Transition(
            messages=messages,
            reward=0.0 if verdict is None else self._reward(verdict),
            done=record.ending is not None,
            metrics=metrics,
        )

    def feedback(self) -> str:
        return tool.feedback(self._record)

    def trace(self) -> str:
        return tool.trace(self._record)

    def close(self) -> None:
        """The index stays open for other episodes."""

    def _do(self, action: tool.Action, events: list[tool.Event]) -> chat.Message:
        if isinstance(action, tool.Search):
            pages = self._search(action.query)
            titles = list(dict.fromkeys(page.title for page in pages))
            events.append(tool.SearchRecord(action.query, titles, len(set(titles) - self._record.titles)))
            self._record.titles.update(titles)
            return _told(action, pages_as_text(pages, self._config.passage_characters))
        if isinstance(action, tool.BadCall):
            events.append(action.problem)
            return _told(action, f"This could not be done: {action.problem}.")
        gold = self._task.payload["answer"]
        events.append(tool.Verdict(action.text, exact_match(action.text, gold), f1_score(action.text, gold)))
        return chat.user_message("The attempt is over.")

    def _see_whether_it_is_over(self) -> None:
        record = self._record
        if record.verdict is not None:
            record.ending = "answered"
        elif len(record.bad_calls) >= self._config.max_bad_calls:
            record.ending = "bad_calls"
        elif len(record.turns) >= self._config.max_turns:
            record.ending = "turns_used"

    def _reward(self, verdict: tool.Verdict) -> float:
        return verdict.f1 if self._config.reward == "f1" else float(verdict.exact)


def _told(action: tool.Search | tool.BadCall, content: str) -> chat.Message:
    return chat.user_message(content) if action.call is None else chat.tool_message(action.call, content)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WHOLE = frozenset({"yes", "no", "noanswer"})
"""Answers that are right or wrong as a whole: another answer shares nothing with them."""


def normalise(answer: str) -> str:
    """Lower case, without punctuation and articles, words with one space between them.

    Where nothing would be left of an answer, such as the letter A, it keeps its articles and punctuation: an
    answer without words must not equal it. The official evaluation has no such rule.
    """
    lower = answer.lower()
    return " ".join(_ARTICLES.sub(" ", lower.translate(_NO_PUNCTUATION)).split()) or " ".join(lower.split())


def exact_match(answer: str, gold: str) -> bool:
    """Whether both are the same after normalisation."""
    return normalise(answer) == normalise(gold)


def f1_score(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the words, from 0 to 1."""
    given, right = normalise(answer), normalise(gold)
    if given != right and (given in _WHOLE or right in _WHOLE):
        return 0.0
    words, wanted = given.split(), right.split()
    common = sum((Counter(words) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def for_template(config: HotpotQAConfig, knows_tools: bool) -> HotpotQAConfig:
    """The settings with a protocol that the policy can use. Raises `InputError` if they ask for another."""
    if knows_tools:
        return config
    if config.tool_format == "template":
        raise InputError(
            "environment.tool_format: template; the policy's chat template knows no tools, or has them "
            "called in a form that is not read; allowed with it are plain and auto"
        )
    return config.model_copy(update={"tool_format": "plain"})


def open_with_index(config: HotpotQAConfig, task: Task, folder: Path, embedders: Embedders) -> Environment:
    """The environment of a task, each episode in a thread of its own."""

    def search(query: str) -> list[Passage]:
        # Opened by the first search, which waits in its own thread for the model that embeds queries.
        embedder = None if config.search == "full_text" else embedders(config.embedding_model)
        return open_index(folder, embedder).search(query, config.passages, config.search)

    return in_threads(HotpotQA(config, task, search))


def open_without_index(config: HotpotQAConfig, task: Task) -> Environment:
    """Raises `InputError`: the environment can only be opened with its index."""
    raise InputError(
        "environment hotpotqa searches an index that is built beforehand; open it with `built_files`"
    )


def pages_as_text(pages: Sequence[Passage], characters: int) -> str:
    """The beginnings of pages, numbered."""
    if not pages:
        return "No page was found."
    return "\n".join(
        f"[{number}] {page.title}: {_beginning(page.text, characters)}"
        for number, page in enumerate(pages, start=1)
    )


def turns_left(left: int) -> str:
    """How many turns are left, as the last line of a message."""
    return f"{left} turns are left." if left > 1 else LAST_TURN


def _beginning(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[:characters].rstrip()}..."


_TURNS_LEFT = re.compile(rf"\n(\d+ turns are left\.|{re.escape(LAST_TURN)})\Z")


def gold_answer(config: HotpotQAConfig, task: Task) -> list[str]:
    """One search a turn, for as many of the pages as there are turns for, and a last turn that answers."""
    titles = [title[: tool.MAX_QUERY_CHARACTERS] for title in task.payload["supporting"]]
    answer = " ".join(task.payload["answer"].split())
    return [*(_search(config, title) for title in titles[: config.max_turns - 1]), f"Answer: {answer}"]


def _search(config: HotpotQAConfig, title: str) -> str:
    if config.is_plain:
        return f"Search: {title}"
    return json.dumps({"name": tool.SEARCH, "arguments": {"query": title}}).join(chat.MARKERS)


def documents_in(config: HotpotQAConfig, task: Task, message: str) -> FoundDocuments | None:
    """The pages in a message, with a mark on those that the question needs; None where it has none."""
    if not message.startswith("[1] "):
        return None
    ending = _TURNS_LEFT.search(message)
    text = message[: ending.start()] if ending else message
    parts: list[str] = []
    for line in text.split("\n"):
        mark = f"[{len(parts) + 1}] "
        if line.startswith(mark):
            parts.append(line.removeprefix(mark))
        else:
            parts[-1] += f"\n{line}"
    return FoundDocuments(
        [_document(part, task.payload["supporting"]) for part in parts], ending[1] if ending else ""
    )


def _document(text: str, supporting: Sequence[str]) -> Document:
    # A title may have a colon in it; the titles of needed pages are known.
    known = next((title for title in supporting if text.startswith(f"{title}: ")), None)
    title = text.partition(": ")[0] if known is None else known
    return Document(title, text.removeprefix(f"{title}: "), needed=known is not None)

"""HotpotQA as an environment: turns of the policy in; pages, reward and true feedback out."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from erl_pipeline.environments.dependencies import Embedders
from erl_pipeline.environments.hotpotqa.index import build_index, open_index, passages_of
from erl_pipeline.environments.hotpotqa.question_file import (
    Event,
    Passage,
    Record,
    SearchRecord,
    Verdict,
    feedback,
    trace,
)
from erl_pipeline.environments.hotpotqa.results import pages_as_text, turns_left_as_text
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tool import (
    SEARCH_TOOL,
    Action,
    BadCall,
    Search,
    read_plain_lines,
    read_tool_calls,
)
from erl_pipeline.environments.interface import Environment, Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, Message, ToolSchema, tool_message, user_message
from erl_pipeline.environments.threads import in_threads
from storage.errors import InputError

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
        self._record = Record(frozenset(task.payload["supporting"]))

    @property
    def instructions(self) -> str:
        return _INSTRUCTIONS["plain" if self._config.is_plain else "template"].format(
            turns=self._config.max_turns
        )

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """Empty in the plain protocol, which the instructions explain."""
        return () if self._config.is_plain else (SEARCH_TOOL,)

    def reset(self) -> Observation:
        self._record = Record(frozenset(self._task.payload["supporting"]))
        return f"Question: {self._task.payload['question']}"

    def step(self, turn: AssistantTurn) -> Transition:
        record = self._record
        found, bad = record.supporting_found, len(record.bad_calls)
        read = read_plain_lines if self._config.is_plain else read_tool_calls
        events: list[Event] = []
        record.turns.append(events)
        messages = [self._do(action, events) for action in read(turn)]
        self._see_whether_it_is_over()
        metrics = {
            "searches": float(sum(isinstance(event, SearchRecord) for event in events)),
            "bad_calls": float(len(record.bad_calls) - bad),
            "supporting_found": float(record.supporting_found - found),
        }
        verdict = record.verdict
        if record.ending is not None:
            metrics["exact_match"] = float(verdict is not None and verdict.exact)
            metrics["f1"] = 0.0 if verdict is None else verdict.f1
        else:
            messages[-1] = _with_line(messages[-1], self._turns_left())
        return Transition(
            messages=messages,
            reward=0.0 if verdict is None else self._reward(verdict),
            done=record.ending is not None,
            metrics=metrics,
        )

    def feedback(self) -> str:
        return feedback(self._record)

    def trace(self) -> str:
        return trace(self._record)

    def close(self) -> None:
        """The index stays open for other episodes."""

    def _do(self, action: Action, events: list[Event]) -> Message:
        if isinstance(action, Search):
            pages = self._search(action.query)
            titles = list(dict.fromkeys(page.title for page in pages))
            events.append(SearchRecord(action.query, titles, len(set(titles) - self._record.titles)))
            self._record.titles.update(titles)
            return _told(action, pages_as_text(pages, self._config.passage_characters))
        if isinstance(action, BadCall):
            events.append(action.problem)
            return _told(action, f"This could not be done: {action.problem}.")
        gold = self._task.payload["answer"]
        events.append(Verdict(action.text, exact_match(action.text, gold), f1_score(action.text, gold)))
        return user_message("The attempt is over.")

    def _see_whether_it_is_over(self) -> None:
        record = self._record
        if record.verdict is not None:
            record.ending = "answered"
        elif len(record.bad_calls) >= self._config.max_bad_calls:
            record.ending = "bad_calls"
        elif len(record.turns) >= self._config.max_turns:
            record.ending = "turns_used"

    def _turns_left(self) -> str:
        return turns_left_as_text(self._config.max_turns - len(self._record.turns))

    def _reward(self, verdict: Verdict) -> float:
        return verdict.f1 if self._config.reward == "f1" else float(verdict.exact)


def _told(action: Search | BadCall, content: str) -> Message:
    return user_message(content) if action.call is None else tool_message(action.call, content)


def _with_line(message: Message, line: str) -> Message:
    return {**message, "content": f"{message['content']}\n{line}"}


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


_WORDS_ALONE = "full_text"
_BUILT_FROM = frozenset(
    {"type", "task_file", "passage_file", "search", "embedding_model", "embedded_characters"}
)


def index_settings(config: HotpotQAConfig) -> HotpotQAConfig:
    """The settings that the index depends on, all others at their defaults."""
    fields = HotpotQAConfig.model_fields
    others = {name: each.get_default() for name, each in fields.items() if name not in _BUILT_FROM}
    if config.search == _WORDS_ALONE:
        others |= {name: fields[name].get_default() for name in ("embedding_model", "embedded_characters")}
    else:
        others["search"] = "hybrid"  # The same index answers a search by vector alone.
    return config.model_copy(update=others)


def for_template(config: HotpotQAConfig, knows_tools: bool) -> HotpotQAConfig:
    """The settings with a protocol that the policy can use. Raises `InputError` if they ask for another."""
    if knows_tools:
        return config
    if config.tool_format == "template":
        raise InputError(
            "environment.tool_format: template; the policy's chat template knows no tools, or has them "
            "called in another form than <tool_call>{...}</tool_call>; allowed with it are plain and auto"
        )
    return config.model_copy(update={"tool_format": "plain"})


def build(config: HotpotQAConfig, folder: Path, embedders: Embedders) -> Mapping[str, int]:
    """Write the index of the configured files into an empty folder."""
    embedder = None if config.search == _WORDS_ALONE else embedders(config.embedding_model)
    return build_index(passages_of(config), folder, embedder, config.embedded_characters)


def open_with_index(config: HotpotQAConfig, task: Task, folder: Path, embedders: Embedders) -> Environment:
    """The environment of a task, each episode in a thread of its own."""

    def search(query: str) -> list[Passage]:
        # Opened by the first search, which waits in its own thread for the model that embeds queries.
        embedder = None if config.search == _WORDS_ALONE else embedders(config.embedding_model)
        return open_index(folder, embedder).search(query, config.passages, config.search)

    return in_threads(HotpotQA(config, task, search))


def open_without_index(config: HotpotQAConfig, task: Task) -> Environment:
    """Raises `InputError`: the environment can only be opened with its index."""
    raise InputError(
        "environment hotpotqa searches an index that is built beforehand; open it with `built_files`"
    )

"""HotpotQA as an environment: turns of the policy in; pages, reward and true feedback out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from erl_pipeline.environments.hotpotqa.question_file import Passage
from erl_pipeline.environments.hotpotqa.record import Event, Record, SearchRecord, Verdict, feedback, trace
from erl_pipeline.environments.hotpotqa.results import pages_as_text, turns_left_as_text
from erl_pipeline.environments.hotpotqa.scoring import exact_match, f1_score
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
from erl_pipeline.environments.hotpotqa.tool import (
    SEARCH_TOOL,
    Action,
    BadCall,
    Search,
    read_plain_lines,
    read_tool_calls,
)
from erl_pipeline.environments.interface import Observation, Task, Transition
from erl_pipeline.environments.messages import AssistantTurn, Message, ToolSchema, tool_message, user_message

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

"""Calls of one conversation, whose history each of them repeats, put together again."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from erl_pipeline.environments.messages import Message
from erl_pipeline.traces.calls import Call, Score
from storage.errors import InputError


@dataclass(frozen=True)
class Conversation:
    """A path of messages from the first to a last answer, each answer of which is in no other conversation.

    `answers`: place in `messages` -> the call that gave it. An assistant's message that is no answer of a
    recorded call, or that another conversation has, is not among them.
    """

    messages: tuple[Message, ...]
    answers: Mapping[int, Call]
    tools: str


def put_together(calls: Iterable[Call]) -> list[Conversation]:
    """The conversations of calls, the longest paths, in the order of the file.

    Two calls share the messages with which both begin, if they are of one conversation and were told of the
    same tools. Each branch is a conversation, and the longest one has the answers before it.
    """
    groups: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.conversation, call.tools].append(call)
    return [found for members in groups.values() for found in _paths(members)]


def _paths(calls: Sequence[Call]) -> Iterator[Conversation]:
    nodes = [list(_nodes(call.messages)) for call in calls]
    inner = {node for path in nodes for node in path[:-1]}
    answered: dict[bytes, Call] = {}
    for call, path in zip(calls, nodes, strict=True):
        for place in call.answers:
            known = answered.setdefault(path[place], call)
            if known.score is None and call.score is not None:
                answered[path[place]] = call
    ends = {path[-1]: number for number, path in reversed(list(enumerate(nodes))) if path[-1] not in inner}
    taken: set[bytes] = set()
    found: dict[int, Conversation] = {}
    for number in sorted(ends.values(), key=lambda number: (-len(nodes[number]), number)):
        path, call = nodes[number], calls[number]
        answers = {
            place: answered[node] for place, node in enumerate(path) if node in answered and node not in taken
        }
        taken.update(path)
        found[number] = Conversation(call.messages, answers, call.tools)
    yield from (found[number] for number in sorted(found))


def _nodes(messages: Iterable[Message]) -> Iterator[bytes]:
    """For each message a digest of it and of all before it."""
    digest = b""
    for each in messages:
        said = json.dumps([each["role"], each["content"]]).encode()
        digest = hashlib.sha256(digest + said).digest()[:16]
        yield digest


def _ids_of(calls: Iterable[Call]) -> set[str]:
    return {each for call in calls for each in (call.span_id, call.trace_id, call.conversation) if each}


def scores_of_no_call(calls: Sequence[Call], scores: Sequence[Score]) -> int:
    """How many scores and comments are about nothing that the file has a call of."""
    known = _ids_of(calls)
    return sum(known.isdisjoint((each.target, each.trace_id)) for each in scores)


def with_scores(calls: Sequence[Call], scores: Sequence[Score], name: str | None) -> list[Call]:
    """The calls with the scores of this name, and with all comments, that were given to them: to the call
    itself, else to its trace, else to its conversation. What was given to another span of the trace, such as
    one around the call, counts as given to the trace.

    Raises InputError where `name` is None and scores have several names, and where no score has it.
    """
    names = sorted({each.name for each in scores if each.value is not None})
    if (name is None and len(names) > 1) or (name is not None and name not in names):
        listed = ", ".join(names[:10]) or "none"
        raise InputError(f"the file has these scores: {listed}; name one of them with --score")
    known = _ids_of(calls)
    values: dict[str, float] = {}
    comments: dict[str, list[str]] = defaultdict(list)
    for each in scores:
        target = each.target if each.target in known else each.trace_id
        if each.value is not None and name in (None, each.name):
            values[target] = each.value  # a later one replaces it
        if each.comment and each.comment.strip():
            comments[target].append(each.comment)

    def scored(call: Call) -> Call:
        targets = [each for each in (call.span_id, call.trace_id, call.conversation) if each]
        value = next((values[each] for each in targets if each in values), None)
        said = next((comments[each] for each in targets if each in comments), [])
        return replace(call, score=value, comments=tuple(said))

    return [scored(call) for call in calls]

"""What the driver asks a worker before it sends it stages. These messages are JSON, since the machine of the
worker may have another version of this project."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any

from flows.keyed_connection import Line
from flows.nodes.check import Node, NodeFinding
from flows.nodes.report import NodeReport, Question, look
from flows.nodes.survey import ANSWER_SECONDS, Survey, clock_offset

_MOST_BYTES = 1_000_000


class NoAnswer(Exception):
    """The worker did not answer in time, ended, or said something else."""


def examine(line: Line, survey: Survey, node: Node) -> NodeFinding[Node]:
    """Ask a worker about its machine, and compare that with this machine. The finding has the node's name."""
    question = survey.question(node.id)
    try:
        told = _ask(
            line,
            what="look",
            path=[os.path.abspath(entry) for entry in sys.path],
            folder=os.getcwd(),
            question={**asdict(question), "content": question.content.hex()},
        )
        node = Node(node.id, str(told["host"]))
        report = NodeReport(**told)
        offset = clock_offset(lambda: float(_ask(line, what="clock")))
    except NoAnswer as error:
        return NodeFinding(node, None, 0.0, (f"the worker gave no answer: {error}",))
    except (KeyError, TypeError):
        said = "erl-pipeline there is another version: install the same version on both"
        return NodeFinding(node, None, 0.0, (said,))
    return survey.finding(node, report, offset)


def begin(line: Line) -> None:
    """Tell a worker that stages will come. Raises NoAnswer when it is gone."""
    _send(line, "compute", {})


def dismiss(line: Line) -> None:
    """Tell a worker that no stages will come, and close the connection to it."""
    try:
        _send(line, "end", {})
    except NoAnswer:
        pass  # It has ended already.
    finally:
        line.close()


def answer_questions(line: Line) -> bool:
    """Answer the driver's questions, in the worker; returns whether stages will come.

    Raises EOFError or OSError when the driver is gone.
    """
    while True:
        asked = json.loads(line.recv_bytes())
        if asked["what"] == "look":
            _settle(asked["path"], asked["folder"])
            question = {**asked["question"], "content": bytes.fromhex(asked["question"]["content"])}
            _answer(line, asdict(look(Question(**question))))
        elif asked["what"] == "clock":
            _answer(line, time.time())
        else:
            return bool(asked["what"] == "compute")


def _settle(path: list[str], folder: str) -> None:
    """Find modules and files where the driver does, as far as this machine has them, so that plug-ins and
    relative file names are the same."""
    sys.path += [entry for entry in path if entry not in sys.path]
    if os.path.isdir(folder):
        os.chdir(folder)


def _ask(line: Line, what: str, **content: Any) -> Any:
    _send(line, what, content)
    try:
        if not line.poll(ANSWER_SECONDS):
            raise NoAnswer(f"it took more than {ANSWER_SECONDS:.0f} s")
        return json.loads(line.recv_bytes(_MOST_BYTES))
    except (EOFError, OSError) as error:
        raise NoAnswer("its process ended, or the connection is lost") from error
    except ValueError as error:
        raise NoAnswer("it did not answer in JSON") from error


def _send(line: Line, what: str, content: dict[str, Any]) -> None:
    try:
        line.send_bytes(json.dumps({"what": what, **content}).encode())
    except OSError as error:
        raise NoAnswer("its process ended, or the connection is lost") from error


def _answer(line: Line, content: Any) -> None:
    line.send_bytes(json.dumps(content).encode())

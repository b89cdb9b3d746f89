"""The attempts of an agent: a command, a function or a server plays a task, and reports what came of it."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from erl_pipeline.environments import interface
from erl_pipeline.environments.agent.functions import function_named
from erl_pipeline.environments.agent.left_behind import (
    TASK_FILE,
    kill_those_that_work_for,
    removed_with_this_process,
)
from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.environments.agent.tasks import agent_files
from erl_pipeline.environments.messages import AssistantTurn, ToolSchema
from erl_pipeline.environments.scorers.interface import score_answer, scorer_named
from erl_pipeline.environments.threads import in_thread
from storage.errors import InputError

if TYPE_CHECKING:
    from aiohttp import StreamReader

_LAST_LINES = 20
_LARGEST_OUTPUT = 64 * 1024  # bytes of its end that are read for a message
_MOST_OUTPUT = 16 * 1024 * 1024  # bytes on the disk
_LOOK_SECONDS = 1.0
_LARGEST_REPORT = 1024 * 1024
_LARGEST_ERROR = 1000  # of a server's answer, and of what an agent says that it could not do
_SHOWN_OF_REPORT = 100  # of one that cannot be read
_END_SECONDS = 5.0
_SHORTEST_SECRET = 4
"""Characters; a shorter value may be a part of any text."""


@dataclass(frozen=True)
class AgentTask:
    """What a function gets, and a server as JSON: the task, and where it finds the policy. `payload` are the
    task's further fields, without the `answer` that a scorer compares with. `seconds` are what it has."""

    task_id: str
    prompt: str
    payload: Mapping[str, Any]
    base_url: str
    api_key: str
    model: str
    seed: int
    seconds: float

    @property
    def anthropic_url(self) -> str:
        """The base URL as Anthropic's clients take it."""
        return self.base_url.removesuffix("/v1")


class AgentAttempts:
    """The attempts of one episode; a fresh process, or a fresh call of the function, for each."""

    instructions = ""
    tools: Sequence[ToolSchema] = ()

    def __init__(self, config: AgentConfig, task: interface.Task, folder: Path | None) -> None:
        self._config = config
        self._task = task
        self._folder = folder
        limits = config.limits
        self.limits = interface.AgentLimits(limits.seconds, limits.calls, limits.tokens)

    async def reset(self) -> interface.Observation:
        prompt: str = self._task.payload["prompt"]
        return prompt

    async def run(self, endpoint: interface.AgentEndpoint) -> interface.AgentResult:
        given = AgentTask(
            self._task.task_id,
            self._task.payload["prompt"],
            {
                name: value
                for name, value in self._task.payload.items()
                if name != "prompt" and (name != "answer" or self._config.reward == "report")
            },
            endpoint.base_url,
            endpoint.api_key,
            endpoint.model,
            endpoint.seed,
            endpoint.seconds,
        )
        try:
            if self._config.function is not None:
                report = await _call(self._config.function, given)
            elif self._config.url is not None:
                report = await _post(self._config.url, given)
            else:
                report = await _run(self._config, given, self._folder)
            result = await self._result(report)
        except ValueError as error:
            if (said := self._without_secrets(str(error))) == str(error):
                raise  # as it is, so that its type and its line are those of a function that raised it
            raise ValueError(said) from error
        except asyncio.CancelledError as error:
            raise asyncio.CancelledError(self._without_secrets(str(error))) from error
        return replace(result, feedback=self._without_secrets(result.feedback))

    def _without_secrets(self, text: str) -> str:
        """The text, which is stored, with the names of secret variables in place of their values."""
        secrets = {os.environ.get(name, ""): name for name in self._config.secret_env}
        for value in sorted(secrets, key=len, reverse=True):  # One may begin another.
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, f"[{secrets[value]}]")
        return text

    async def _result(self, report: object) -> interface.AgentResult:
        """What a report means. Raises `ValueError` for one that says nothing or something impossible."""
        if not isinstance(report, Mapping):
            raise ValueError(f"no report: {_shown(report)} is no object with {' or '.join(_REPORT)}")
        unknown = sorted(set(map(str, report)) - set(_REPORT))
        if unknown:
            raise ValueError(f"the report has {_shown(unknown[0])}; allowed are {', '.join(_REPORT)}")
        if report.get("not_scored") is not None:
            why = str(report["not_scored"])[:_LARGEST_ERROR]
            raise ValueError(f"the agent could not be scored: {why}")
        feedback, metrics = report.get("feedback", ""), report.get("metrics", {})
        if not isinstance(feedback, str) or not isinstance(metrics, Mapping):
            raise ValueError("the report's feedback has to be a text, and its metrics an object")
        numbers = {str(name): _number(f"metric {name}", value) for name, value in metrics.items()}
        if self._config.reward == "report":
            reward = _number("reward", report.get("reward"))
            if not 0.0 <= reward <= 1.0:
                raise ValueError(f"the reward is {reward}; allowed are numbers from 0 to 1")
            return interface.AgentResult(reward, feedback or _outcome(reward), numbers)
        if report.get("reward") is not None:
            raise ValueError("the report has a reward; with environment.reward: scorer only an answer counts")
        answer = report.get("answer")
        if answer is not None and not isinstance(answer, str):
            answer = str(answer)
        scored = await score_answer(scorer_named(self._config.scorer), answer, self._task.payload)
        said = [_outcome(scored.score), scored.remark, feedback]
        return interface.AgentResult(scored.score, " ".join(filter(None, said)), numbers)

    async def step(self, turn: AssistantTurn) -> interface.Transition:
        raise TypeError("an agent plays this environment; nobody else takes its turns")

    async def feedback(self) -> str:
        raise TypeError("the feedback of an agent's attempt is in its result")

    def trace(self) -> str:
        raise TypeError("the trace of an agent's attempt is what it asked and was answered")

    async def close(self) -> None:
        """There is nothing to release: what an attempt starts, it ends."""


_REPORT = ("reward", "answer", "feedback", "metrics", "not_scored")


def _shown(value: object) -> str:
    said = repr(value)
    return said if len(said) <= _SHOWN_OF_REPORT else f"{said[:_SHOWN_OF_REPORT]}…"


def _number(what: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"the report's {what} is {_shown(value)}, not a number")
    return float(value)


def _outcome(reward: float) -> str:
    outcome = {0.0: "The attempt failed.", 1.0: "The attempt succeeded."}
    return outcome.get(reward, f"The score of the attempt is {reward:.3g}, where 1 is right.")


async def _call(name: str, task: AgentTask) -> object:
    """The report of a function, called in a thread of its own. One that does not end by the deadline goes on
    there; its calls are then refused."""
    function = function_named(name)

    def call() -> object:
        found = function(task)
        return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found

    return await in_thread(call)


async def _awaited(work: Any) -> object:
    found: object = await work
    return found


async def _post(url: str, task: AgentTask) -> object:
    """The report of a served agent: its answer. At the deadline the connection is closed."""
    # A web client, which other agents do without.
    import aiohttp

    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as http,
        http.post(url, json=asdict(task), allow_redirects=False) as answer,
    ):
        body = await _at_most(answer.content, _LARGEST_REPORT)
        if answer.status != HTTPStatus.OK:
            said = body[:_LARGEST_ERROR].decode("utf-8", "replace")
            raise ValueError(f"no report: {url} answered with status {answer.status}: {said}")
    return _report_of(body, f"the answer of {url}")


async def _at_most(content: StreamReader, size: int) -> bytes:
    body = bytearray()
    async for part in content.iter_any():
        body += part
        if len(body) > size:
            raise ValueError(f"the report has more than {size} bytes")
    return bytes(body)


async def _run(config: AgentConfig, task: AgentTask, files: Path | None) -> object:
    """The report of a command. It runs in a process group of its own, which is ended with it."""
    assert config.command is not None
    with (
        tempfile.TemporaryDirectory(prefix="erl-agent-", ignore_cleanup_errors=True) as scratch,
        removed_with_this_process(scratch),
    ):
        folder, report, output = Path(scratch, "agent"), Path(scratch, "report.json"), Path(scratch, "output")
        if files is None:
            folder.mkdir()
        else:
            shutil.copytree(files, folder)
            _let_start(folder, config)
        given = {"task_id": task.task_id, "prompt": task.prompt, **task.payload}
        Path(scratch, TASK_FILE).write_text(json.dumps(given), encoding="utf-8")
        variables = {
            **{name: os.environ[name] for name in ("PATH", "HOME", *config.secret_env) if name in os.environ},
            **config.env,
            "OPENAI_BASE_URL": task.base_url,
            "OPENAI_API_KEY": task.api_key,
            "OPENAI_MODEL": task.model,
            "ANTHROPIC_BASE_URL": task.anthropic_url,
            "ANTHROPIC_API_KEY": task.api_key,
            "ERL_TASK_FILE": str(Path(scratch, TASK_FILE)),
            "ERL_REPORT_FILE": str(report),
            "ERL_SEED": str(task.seed),
            "ERL_SECONDS": f"{task.seconds:g}",
        }
        program, *arguments = config.command
        with output.open("ab") as out:  # So it goes on at the end that the file has, also when it is emptied.
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable if program == "python" else program,
                    *arguments,
                    cwd=folder,
                    env=variables,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            except (FileNotFoundError, PermissionError) as error:
                raise ValueError(
                    f"environment.command: {program} cannot be started: {error.strerror}"
                ) from error
        try:
            status = await _status_of(process, output)
        except asyncio.CancelledError as error:
            raise asyncio.CancelledError(_last_lines(output)) from error
        finally:
            await _to_its_end(_end(process, scratch))
        written = _bytes_of_report(report)
        if written is None:
            raise ValueError(
                f"no report: the command ended with status {status} and wrote no file at ERL_REPORT_FILE"
                f"{_last_lines(output)}"
            )
        return _report_of(written, "the file at ERL_REPORT_FILE", output)


async def _status_of(process: asyncio.subprocess.Process, output: Path) -> int:
    """The status with which the command ends. What it prints is emptied whenever it is too much, so that it
    cannot fill the disk."""
    while True:
        try:
            return await asyncio.wait_for(process.wait(), _LOOK_SECONDS)
        except TimeoutError:
            with suppress(OSError):  # The command has removed it.
                if output.stat().st_size > _MOST_OUTPUT:
                    os.truncate(output, 0)


def _report_of(written: bytes, where: str, output: Path | None = None) -> object:
    """The report that is written there. Raises `ValueError` for what is no JSON, with how it begins."""
    try:
        return json.loads(written)
    except ValueError as error:  # no JSON, or no UTF-8
        begins = repr(written[:_SHOWN_OF_REPORT].decode("utf-8", "replace")) if written else "it is empty"
        said = "" if output is None else _last_lines(output)
        raise ValueError(f"no report: {where} is no JSON ({error}): {begins}{said}") from error


def _bytes_of_report(path: Path) -> bytes | None:
    """What is in the file; None if there is none. Raises `ValueError` for one that is too large, and for a
    pipe or a device, whose end may never come."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(
            f"no report: the file at ERL_REPORT_FILE cannot be read: {error.strerror}"
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("no report: what is at ERL_REPORT_FILE is no file")
    with open(descriptor, "rb") as file:
        written = file.read(_LARGEST_REPORT + 1)
    if len(written) > _LARGEST_REPORT:
        raise ValueError(f"the report has more than {_LARGEST_REPORT} bytes")
    return written


def _let_start(folder: Path, config: AgentConfig) -> None:
    """Make the command's program executable where it is one of the agent's files: stores do not keep that."""
    assert config.command is not None
    program = str(PurePosixPath(config.command[0]))
    if program in config.files:
        (folder / program).chmod(0o755)


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for it, also where this task is cancelled meanwhile: a run that ends cancels more than once."""
    ending, cancelled = asyncio.ensure_future(work), None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _end(process: asyncio.subprocess.Process, scratch: str) -> None:
    """End the command and all that it has started: by SIGTERM, and after some seconds by SIGKILL."""
    for sent, seconds in ((signal.SIGTERM, _END_SECONDS), (signal.SIGKILL, _END_SECONDS)):
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            break
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            continue
    # What has left the process group, as browsers and kernels of notebooks do.
    await asyncio.to_thread(kill_those_that_work_for, [scratch])


def _last_lines(output: Path) -> str:
    try:
        with output.open("rb") as file:
            file.seek(max(0, output.stat().st_size - _LARGEST_OUTPUT))
            lines = file.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    except OSError:  # The command has removed it.
        return ""
    return "; its last lines:\n" + "\n".join(lines) if lines else ""


def build(config: AgentConfig, folder: Path, embedders: interface.Embedders) -> Mapping[str, int]:
    """Copy the agent's files into a folder, by their names there."""
    found = agent_files(config)
    for key, path in found.items():
        target = folder / key.removeprefix("files.")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(path, target)
        except OSError as error:
            raise InputError(f"environment.{key}: {path} cannot be read: {error.strerror}") from error
    return {"agent_files": len(found)}


def open_with_files(
    config: AgentConfig, task: interface.Task, folder: Path, embedders: interface.Embedders
) -> AgentAttempts:
    return AgentAttempts(config, task, folder)


def open_agent(config: AgentConfig, task: interface.Task) -> AgentAttempts:
    return AgentAttempts(config, task, None)

"""Agents that are commands: their folder, their environment, what they report, and how they end."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from erl_pipeline.environments.agent.attempts import AgentAttempts, _let_start, build
from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.environments.interface import AgentEndpoint, AgentResult, ScorerFailed, Task
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure, GuardedEnvironment
from storage.errors import ConfigError
from tests.waiting import wait_for

TASK = Task("t", "agent", "agent", {"prompt": "how many?", "answer": "7", "hint": "count"})
ENDPOINT = AgentEndpoint("http://127.0.0.1:1/v1", "key", "policy", 5, 60.0)


def program(folder: Path, code: str, **settings: Any) -> AgentAttempts:
    """An agent in Python, as a file that the environment copies into each attempt's folder."""
    (folder / "source.py").write_text(textwrap.dedent(code))
    config = AgentConfig(
        command=("python", "agent.py"), files={"agent.py": str(folder / "source.py")}, **settings
    )
    built = folder / "built"
    built.mkdir()
    assert build(config, built, lambda name: pytest.fail("no embedder is asked for")) == {"agent_files": 1}
    return AgentAttempts(config, TASK, built)


def run(attempts: AgentAttempts) -> AgentResult:
    return asyncio.run(attempts.run(ENDPOINT))


def test_a_command_finds_its_task_the_policy_and_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "hush")
    monkeypatch.setenv("OTHER_SECRET", "not for agents")
    attempts = program(
        tmp_path,
        """
        import json, os
        task = json.load(open(os.environ["ERL_TASK_FILE"]))
        seen = {"task": task, "files": os.listdir("."), "variables": dict(os.environ)}
        report = {"reward": 0.25, "feedback": json.dumps(seen), "metrics": {"steps": 3}}
        json.dump(report, open(os.environ["ERL_REPORT_FILE"], "w"))
        """,
        env={"MODE": "fast"},
        secret_env=("SEARCH_KEY",),
    )
    result = run(attempts)
    seen = json.loads(result.feedback)
    assert (result.reward, result.metrics) == (0.25, {"steps": 3.0})
    assert seen["task"] == {"task_id": "t", "prompt": "how many?", "answer": "7", "hint": "count"}
    assert seen["files"] == ["agent.py"]
    variables = seen["variables"]
    told = {name: value for name, value in variables.items() if name.startswith(("OPENAI_", "ANTHROPIC_"))}
    assert told == {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:1",
        "ANTHROPIC_API_KEY": "key",
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "OPENAI_API_KEY": "key",
        "OPENAI_MODEL": "policy",
    }
    # It had the value, and the name takes its place in what is stored.
    assert (variables["MODE"], variables["SEARCH_KEY"], "OTHER_SECRET" in variables) == (
        "fast",
        "[SEARCH_KEY]",
        False,
    )


def test_a_scorer_compares_an_answer_that_the_agent_never_saw(tmp_path: Path) -> None:
    attempts = program(
        tmp_path,
        """
        import json, os
        task = json.load(open(os.environ["ERL_TASK_FILE"]))
        answer = "6" if "answer" in task else "7"
        json.dump({"answer": answer, "feedback": "I counted."}, open(os.environ["ERL_REPORT_FILE"], "w"))
        """,
        reward="scorer",
        scorer="exact",
    )
    result = run(attempts)
    assert (result.reward, result.feedback) == (1.0, "The attempt succeeded. I counted.")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "print('half way'); raise SystemExit(3)",
            "status 3 and wrote no file.*\nhalf way",
        ),
        ("pass", "status 0 and wrote no file"),
        ("report('{ab')", r"the file at ERL_REPORT_FILE is no JSON \(Expecting .*\): '{ab'"),
        ("print('so far'); report('')", "is no JSON .*: it is empty; its last lines:\nso far"),
        ("report('[1]')", "is no object with reward or answer"),
        ("report('{}')", "reward is None, not a number"),
        ("report('{\"reward\": 2}')", "the reward is 2.0; allowed are numbers from 0 to 1"),
        ("report('{\"reward\": true}')", "reward is True, not a number"),
        ("report('{\"reward\": \"' + 'x' * 2000 + '\"}')", f"reward is '{'x' * 99}…, not a number"),
        ("report('{\"reward\": NaN}')", "reward is nan, not a number"),
        ("report('{\"rewards\": 1}')", "the report has 'rewards'; allowed are reward, answer"),
        ('report(\'{"not_scored": "the site was down"}\')', "could not be scored: the site was down"),
        ("report('\"' + 'x' * 2000000 + '\"')", "more than 1048576 bytes"),
        ("os.mkdir(os.environ['ERL_REPORT_FILE'])", "what is at ERL_REPORT_FILE is no file"),
        ("os.mkfifo(os.environ['ERL_REPORT_FILE'])", "what is at ERL_REPORT_FILE is no file"),
        ("os.symlink('/dev/zero', os.environ['ERL_REPORT_FILE'])", "ERL_REPORT_FILE is no file"),
    ],
)
def test_without_a_report_that_says_something_an_attempt_is_not_scored(
    tmp_path: Path, code: str, message: str
) -> None:
    """A crash is no failure of the policy: a reward of 0 would train it."""
    attempts = program(
        tmp_path,
        f"import os\ndef report(text):\n    open(os.environ['ERL_REPORT_FILE'], 'w').write(text)\n{code}\n",
    )
    with pytest.raises(ValueError, match=message):
        run(attempts)


def test_a_scorer_that_fails_is_told_apart(tmp_path: Path) -> None:
    attempts = program(
        tmp_path,
        "import os; open(os.environ['ERL_REPORT_FILE'], 'w').write('{\"answer\": \"x\"}')",
        reward="scorer",
        scorer="numeric",
    )
    broken = AgentAttempts(attempts._config, Task("t", "agent", "agent", {"prompt": "?"}), tmp_path / "built")
    with pytest.raises(ScorerFailed):
        run(broken)


@pytest.mark.parametrize("crashes", [True, False])
def test_the_value_of_a_secret_is_in_nothing_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: bool
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "hush-hush")
    monkeypatch.setenv("OTHER_KEY", "hush")
    code = """
        import json, os, sys
        told = f"GET /search?key={os.environ['SEARCH_KEY']} gave 401"
        if sys.argv[1:]:
            raise SystemExit(told)
        json.dump({"reward": 0.0, "feedback": told}, open(os.environ["ERL_REPORT_FILE"], "w"))
    """
    attempts = program(tmp_path, code, secret_env=("OTHER_KEY", "SEARCH_KEY"))
    if crashes:
        config = attempts._config.model_copy(update={"command": ("python", "agent.py", "crash")})
        with pytest.raises(ValueError, match=r"key=\[SEARCH_KEY\] gave 401"):
            run(AgentAttempts(config, TASK, tmp_path / "built"))
    else:
        assert run(attempts).feedback == "GET /search?key=[SEARCH_KEY] gave 401"


def test_a_file_of_the_agent_can_be_its_program(tmp_path: Path) -> None:
    source = tmp_path / "agent.sh"
    source.write_text('#!/bin/sh\necho \'{"reward": 1}\' > "$ERL_REPORT_FILE"\n')
    config = AgentConfig(command=("./agent.sh",), files={"agent.sh": str(source)})
    built = tmp_path / "built"
    built.mkdir()
    build(config, built, lambda name: pytest.fail("no embedder is asked for"))
    assert run(AgentAttempts(config, TASK, built)).reward == 1.0


def test_a_program_outside_the_agents_folder_stays_as_it_is(tmp_path: Path) -> None:
    """With an absolute path, and with one that leaves the folder."""
    outside, source = tmp_path / "interpreter", tmp_path / "agent.sh"
    outside.symlink_to("/bin/sh")
    mode = outside.stat().st_mode
    source.write_text('echo \'{"reward": 1}\' > "$ERL_REPORT_FILE"\n')
    config = AgentConfig(command=(str(outside), "agent.sh"), files={"agent.sh": str(source)})
    built = tmp_path / "built"
    built.mkdir()
    build(config, built, lambda name: pytest.fail("no embedder is asked for"))
    assert run(AgentAttempts(config, TASK, built)).reward == 1.0
    assert outside.stat().st_mode == mode
    left = tmp_path / "left"
    left.write_text("")
    left.chmod(0o640)
    _let_start(built, config.model_copy(update={"command": ("../left",)}))
    assert left.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(sys.platform != "linux", reason="they are found by /proc")
def test_a_process_that_left_the_group_ends_with_its_attempt(tmp_path: Path) -> None:
    """As browsers and kernels of notebooks do."""
    pids = tmp_path / "pids"
    attempts = program(
        tmp_path,
        f"""
        import os, subprocess, sys
        left = subprocess.Popen(
            [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
        )
        open({str(pids)!r}, "w").write(str(left.pid))
        open(os.environ["ERL_REPORT_FILE"], "w").write('{{"reward": 1}}')
        """,
    )
    assert run(attempts).reward == 1.0
    wait_for("its end", lambda: not _lives(pids.read_text()))


def test_at_its_deadline_a_command_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Also a child that ignores SIGTERM, as the command itself does."""
    pids = tmp_path / "pids"
    attempts = program(
        tmp_path,
        f"""
        import os, signal, subprocess, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        signal.pause()
        """,
    )

    async def stopped() -> None:
        running = asyncio.create_task(attempts.run(ENDPOINT))
        while not pids.exists() or len(pids.read_text().split()) < 2:
            await asyncio.sleep(0.05)
        running.cancel()
        # A run that is stopped cancels again what has not ended, and this takes five seconds to end.
        await asyncio.sleep(0.2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(stopped())
    wait_for("the group's end", lambda: not any(map(_lives, pids.read_text().split())))


def test_what_a_command_said_before_its_deadline_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEARCH_KEY", "abcd1234")
    code = "import os, signal; print('asks with', os.environ['SEARCH_KEY'], flush=True); signal.pause()"
    attempts = program(tmp_path, code, secret_env=("SEARCH_KEY",))
    guarded = GuardedEnvironment(lambda: attempts, 60.0)
    with pytest.raises(EnvironmentFailure) as failure:
        asyncio.run(guarded.run_agent(replace(ENDPOINT, seconds=1.0)))
    assert str(failure.value) == (
        "the agent did not return within 1 seconds; its last lines:\nasks with [SEARCH_KEY]"
    )


def _lives(pid: str) -> bool:
    return bool(psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE)


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = AgentConfig(command=("no-such-program-here",))
    with pytest.raises(ValueError, match=r"environment\.command: no-such-program-here cannot be started"):
        run(AgentAttempts(config, TASK, None))


def test_a_function_that_is_not_there_is_named() -> None:
    config = AgentConfig(function="tests.nowhere:solve")
    with pytest.raises(ConfigError, match=r"environment\.function: tests.nowhere:solve cannot be imported"):
        run(AgentAttempts(config, TASK, None))


def test_what_a_command_prints_does_not_fill_the_disk(tmp_path: Path) -> None:
    """It waits until its output was emptied, and what it says afterwards is told."""
    code = """
        import os, time
        os.write(1, b"x" * (16 * 2**20 + 1))
        while os.fstat(1).st_size:
            time.sleep(0.05)
        print("goes on")
    """
    with pytest.raises(ValueError, match=r"its last lines:\ngoes on$"):
        asyncio.run(asyncio.wait_for(program(tmp_path, code).run(ENDPOINT), 30.0))


def test_a_command_that_removes_its_output_is_told_of_as_any_other(tmp_path: Path) -> None:
    code = "import os, pathlib, shutil; shutil.rmtree(pathlib.Path(os.environ['ERL_TASK_FILE']).parent)"
    with pytest.raises(ValueError, match=r"wrote no file at ERL_REPORT_FILE$"):
        run(program(tmp_path, code))


def test_the_address_of_an_agent_is_used_as_it_is_given() -> None:
    """Many servers answer `/run` and `/run/` in different ways, and some tell agents apart by a query."""
    url = "http://127.0.0.1:9000/run/?mode=fast"
    assert AgentConfig(url=url, agent_version="1").url == url


def served(
    answer: Callable[[dict[str, Any]], Awaitable[web.StreamResponse]], seconds: float = 60.0, **settings: Any
) -> AgentResult:
    """The attempt of an agent at an address of this machine."""

    async def run() -> AgentResult:
        async def handler(request: web.Request) -> web.StreamResponse:
            return await answer(await request.json())

        app = web.Application()
        app.router.add_post("/run", handler)
        server = TestServer(app)
        await server.start_server()
        try:
            config = AgentConfig(url=str(server.make_url("/run")), agent_version="1", **settings)
            guarded = GuardedEnvironment(lambda: AgentAttempts(config, TASK, None), 60.0)
            return await guarded.run_agent(replace(ENDPOINT, seconds=seconds))
        finally:
            await server.close()

    return asyncio.run(run())


def test_an_agent_at_an_address_gets_the_task_and_answers_with_its_report() -> None:
    seen: dict[str, Any] = {}

    async def answer(task: dict[str, Any]) -> web.StreamResponse:
        seen.update(task)
        return web.json_response({"answer": "7", "feedback": "I counted."})

    result = served(answer, reward="scorer")
    assert (result.reward, result.feedback) == (1.0, "The attempt succeeded. I counted.")
    assert seen == {
        "task_id": "t",
        "prompt": "how many?",
        "payload": {"hint": "count"},
        "base_url": "http://127.0.0.1:1/v1",
        "api_key": "key",
        "model": "policy",
        "seed": 5,
        "seconds": 60.0,
    }


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (lambda: web.json_response({"reward": 1.0}, status=202), "answered with status 202"),
        (lambda: web.Response(status=500, text="no map"), "answered with status 500: no map"),
        (lambda: web.Response(status=307, headers={"Location": "/run"}), "answered with status 307"),
        (lambda: web.Response(text="done"), r"the answer of http.* is no JSON \(Expecting value.*\): 'done'"),
        (lambda: web.json_response([1]), "is no object with reward or answer"),
        (lambda: web.Response(body=b"x" * 2_000_000), "more than 1048576 bytes"),
    ],
)
def test_an_address_that_gives_no_report_is_not_scored(
    response: Callable[[], web.StreamResponse], message: str
) -> None:
    async def answer(task: dict[str, Any]) -> web.StreamResponse:
        return response()

    with pytest.raises(EnvironmentFailure, match=message):
        served(answer)


def test_an_address_that_does_not_answer_in_time_is_not_scored() -> None:
    async def answer(task: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(EnvironmentFailure) as late:
        served(answer, seconds=0.2)
    assert late.value.kind == "environment_timeout"


def test_an_address_where_nobody_listens_is_named() -> None:
    config = AgentConfig(url="http://127.0.0.1:1/run", agent_version="1")
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
        run(AgentAttempts(config, TASK, None))

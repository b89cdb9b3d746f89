"""Failures name the line of the code that a user wrote, and no line of the checks around it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from erl_pipeline.environments.agent.attempts import AgentAttempts
from erl_pipeline.environments.agent.settings import AgentConfig
from erl_pipeline.environments.interface import AgentEndpoint, Task
from erl_pipeline.environments.raised_at import raised_at
from erl_pipeline.episodes.guarded_environment import EnvironmentFailure, GuardedEnvironment
from storage.upkeep.rules import parse_rule

THIS = Path(__file__).name


def asks_a_library(task: Any) -> dict[str, float]:
    """An agent that fails within code which it calls."""
    return TypeAdapter(dict[str, float]).validate_python(f"no reward for {task.task_id}")


def reads_no_json(task: Any) -> object:
    return json.loads("no JSON")


def reports_too_much(task: Any) -> dict[str, float]:
    return {"reward": 3.0}


def failure_of(config: AgentConfig) -> EnvironmentFailure:
    task = Task("t", "agent", "agent", {"prompt": "how many?", "answer": "7"})
    guarded = GuardedEnvironment(lambda: AgentAttempts(config, task, None), 60.0)
    with pytest.raises(EnvironmentFailure) as failed:
        asyncio.run(guarded.run_agent(AgentEndpoint("http://127.0.0.1:1/v1", "key", "policy", 5, 60.0)))
    return failed.value


@pytest.mark.parametrize("agent", [asks_a_library, reads_no_json])
def test_an_agents_error_names_the_line_in_its_own_file(agent: Any) -> None:
    config = AgentConfig(function=f"{agent.__module__}:{agent.__name__}", reward="report")
    line = agent.__code__.co_firstlineno + (2 if agent is asks_a_library else 1)
    assert failure_of(config).place == f"{THIS}, line {line}"


def test_an_agents_error_keeps_its_type() -> None:
    config = AgentConfig(function=f"{__name__}:reads_no_json", reward="report")
    assert str(failure_of(config)).startswith("the agent: JSONDecodeError: Expecting value")


def test_a_report_that_is_refused_names_no_line_of_the_check() -> None:
    config = AgentConfig(function=f"{__name__}:reports_too_much", reward="report")
    failure = failure_of(config)
    assert str(failure) == "the agent: ValueError: the reward is 3.0; allowed are numbers from 0 to 1"
    assert failure.place == ""


def test_a_command_without_a_report_names_no_line_of_the_check() -> None:
    failure = failure_of(AgentConfig(command=("python", "-c", "print('lost')"), reward="report"))
    assert str(failure).endswith("wrote no file at ERL_REPORT_FILE; its last lines:\nlost")
    assert failure.place == ""


def test_an_error_within_this_project_names_the_innermost_line() -> None:
    with pytest.raises(AttributeError) as failed:
        parse_rule(None)  # type: ignore[arg-type]
    called_by_this_test = failed.value.__traceback__
    assert called_by_this_test is not None
    within = failed.value.with_traceback(called_by_this_test.tb_next)
    assert raised_at(within).startswith("rules.py, line ")

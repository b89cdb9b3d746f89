"""Settings of agents as environments."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.environments.scorers.interface import ScorerName
from erl_pipeline.environments.tasks import require_some_to_train

_NAME = r"[^\W\d]\w*"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SET = ("OPENAI_", "ANTHROPIC_", "ERL_")


class AttemptLimitSettings(Settings):
    """Limits of one attempt of an agent."""

    seconds: float = Field(default=600.0, gt=0.0)
    """The agent is ended after so many seconds, and its attempt is not scored."""
    calls: int = Field(default=64, ge=1)
    """Most calls of the policy; a further one is refused with `attempt_limit`."""
    tokens: int = Field(default=32_768, ge=1)
    """Most tokens that the policy says in all calls together. Calls at the same time, and choices of one
    call, may each say what is left."""


class AgentConfig(PluginSettings):
    """An agent of one's own: a command, a Python function or a server that asks the policy as it would ask
    OpenAI's or Anthropic's models."""

    type: Literal["agent"] = "agent"
    training_file: str | None = None
    """The file of tasks, one JSON object a line: `prompt`, and if wanted `id`, `task_type` and any further
    fields, which the agent and the scorer see; with a scorer also `answer`, which only the scorer sees. It
    has to be given."""
    held_out_file: str | None = None
    """Tasks for evaluation, in the same form; null: a share of `training_file` is held out."""
    held_out_share: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the tasks of `training_file` that are held out where there is no `held_out_file`."""
    test_share: float = Field(default=0.0, ge=0.0, lt=1.0, exclude_if=lambda share: not share)
    """Share of the tasks of `held_out_file`, or of `training_file` where there is none, that are set aside
    for `compare`."""
    split_seed: int = Field(default=0, ge=0)
    """Chooses which tasks are held out and set aside."""
    command: tuple[str, ...] | None = None
    """The program and its arguments, such as `[python, agent.py]`; it runs in an empty folder with the
    `files`. `python` is the interpreter of the pipeline. This, `function` or `url` has to be given."""
    function: str | None = None
    """A Python function, such as `my_package.agent:solve`. It gets a task, and returns the report; a function
    with `async def` may await. It runs in a thread of the process that samples."""
    url: str | None = None
    """The address of an agent that is served on this machine, such as `http://127.0.0.1:9000/run`. Each task
    is posted to it as JSON, and the answer is the report."""
    agent_version: str | None = None
    """Which version of the agent it is, in your own words, as far as `files` do not say it: the commit of
    what is served at `url`, or the image that the command starts. A run depends on it. A `url` needs it."""
    files: dict[str, str | None] = Field(default_factory=dict)
    """Files that the command needs: the name in its folder, and the path here, such as
    `{agent.py: agents/agent.py}`. They are part of what a run depends on."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the command's environment. It has `PATH` and `HOME`, these, and those of the attempt."""
    secret_env: tuple[str, ...] = ()
    """Names of variables that are passed on from the pipeline's own environment. Their values are not stored:
    in feedback and in what is shown of an attempt that failed, `[NAME]` takes the place of one of four
    characters or more."""
    reward: Literal["report", "scorer"] = "report"
    """`report`: the reward is a number from 0 to 1 in the agent's report. `scorer`: a scorer compares the
    report's `answer` with that of the task, and a report may hold no reward. Prefer this for agents that
    execute what the policy writes: such code could report its own reward."""
    scorer: ScorerName = "exact"
    """Name of the scorer: `exact`, `numeric`, `math`, `contains`, `f1`, or one of an installed package."""
    limits: AttemptLimitSettings = AttemptLimitSettings()

    @field_validator("function")
    @classmethod
    def _names_a_function(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(rf"{_NAME}(\.{_NAME})*:{_NAME}", value):
            raise ValueError(f"{value!r}: allowed is MODULE:FUNCTION, such as my_package.agent:solve")
        return value

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            names_a_place = bool(parts.hostname) and parts.port != 0
        except ValueError:  # of what is no port, or no number of IPv6
            names_a_place = False
        if not names_a_place or not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
            raise ValueError(f"{value!r}: allowed is an address such as http://127.0.0.1:9000/run")
        if parts.username is not None:
            raise ValueError(
                "it holds a name or a password, and settings are stored; let the agent ask for none"
            )
        return value

    @field_validator("command")
    @classmethod
    def _has_a_program(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and (not value or not value[0]):
            raise ValueError("a command needs a program, such as [python, agent.py]")
        return value

    @field_validator("files")
    @classmethod
    def _stays_in_its_folder(cls, files: dict[str, str | None]) -> dict[str, str | None]:
        for name in files:
            parts = PurePosixPath(name).parts
            if (
                not parts
                or ".." in parts
                or PurePosixPath(name).is_absolute()
                or str(PurePosixPath(name)) != name
            ):
                raise ValueError(f"{name!r}: allowed are names within the agent's folder, such as agent.py")
        return files

    @field_validator("env", "secret_env")
    @classmethod
    def _can_be_set(cls, names: dict[str, str] | tuple[str, ...]) -> dict[str, str] | tuple[str, ...]:
        for name in names:
            if not _VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of an environment variable")
            if name.startswith(_SET):
                raise ValueError(
                    f"{name}: variables that begin with {', '.join(_SET)} are set by the pipeline"
                )
        return names

    @model_validator(mode="after")
    def _something_left(self) -> AgentConfig:
        require_some_to_train(self.held_out_file, self.held_out_share, self.test_share, "task")
        return self

    @model_validator(mode="after")
    def _one_agent(self) -> AgentConfig:
        named = [name for name in ("command", "function", "url") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other; give the one that is the agent")
        if named in (["function"], ["url"]) and (self.files or self.env or self.secret_env):
            raise ValueError(f"files, env and secret_env are for a command; leave them out with a {named[0]}")
        if self.url is not None and not self.agent_version:
            raise ValueError("a url needs agent_version: what is served there, such as a commit")
        if self.function is not None and self.agent_version is not None:
            raise ValueError("agent_version is for a url or a command; of a function the code itself counts")
        return self

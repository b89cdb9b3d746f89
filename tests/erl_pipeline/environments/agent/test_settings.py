from __future__ import annotations

from typing import Any

import pytest

from erl_pipeline.environments.agent.settings import AgentConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": ["x"], "function": "a:b"}, "command and function exclude each other"),
        ({"function": "solve"}, "allowed is MODULE:FUNCTION"),
        ({"function": ".agent:solve"}, "allowed is MODULE:FUNCTION"),
        ({"function": "my..agent:solve"}, "allowed is MODULE:FUNCTION"),
        ({"command": []}, "a command needs a program"),
        ({"command": ["x"], "files": {"../up.py": "a"}}, "allowed are names within the agent's folder"),
        ({"command": ["x"], "env": {"OPENAI_API_KEY": "k"}}, "are set by the pipeline"),
        ({"command": ["x"], "secret_env": ["A-B"]}, "is no name of an environment variable"),
        ({"function": "a:b", "files": {"a.py": "a"}}, "leave them out with a function"),
        ({"url": "http://x", "function": "a:b", "agent_version": "1"}, "function and url exclude each other"),
        ({"url": "http://x", "files": {"a.py": "a"}}, "leave them out with a url"),
        ({"url": "127.0.0.1:9000"}, "allowed is an address such as"),
        ({"url": "http://:9000/run"}, "allowed is an address such as"),
        ({"url": "http://127.0.0.1:abc/run"}, "allowed is an address such as"),
        ({"url": "http://127.0.0.1:99999/run"}, "allowed is an address such as"),
        ({"url": "http://[::1:9000/run"}, "allowed is an address such as"),
        ({"url": "http://127.0.0.1:9000/run"}, "a url needs agent_version"),
        ({"url": "http://me:key@127.0.0.1:9000/run"}, "it holds a name or a password"),
        ({"function": "a:b", "agent_version": "1"}, "of a function the code itself counts"),
        ({"function": "a:b", "held_out_share": 0.4, "test_share": 0.6}, "leave no task to train on"),
        ({"scorer": "sense"}, "there is no scorer 'sense'"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentConfig(**settings)

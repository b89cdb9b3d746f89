"""`env try`, with an agent that is a command and a model of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command_line.invoke import SMALL, invoke
from tests.random_models import save_byte_llama

AGENT = """\
import json, os, urllib.request
asked = {"messages": [{"role": "user", "content": "how many?"}], "max_tokens": 4}
call = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(asked).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
with urllib.request.urlopen(call) as answer:
    used = json.load(answer)["usage"]["completion_tokens"]
with open(os.environ["ERL_REPORT_FILE"], "w") as report:
    json.dump({"reward": 0.5, "feedback": f"{used} tokens"}, report)
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    save_byte_llama(tmp_path / "model", positions=256, layers=1)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"prompt": f"task {n}"}) + "\n" for n in range(8))
    )
    (tmp_path / "agent.py").write_text(AGENT)
    path = tmp_path / "agent.yaml"
    path.write_text(
        "name: agent\niterations: 1\n"
        f"environment: {{type: agent, training_file: {tmp_path}/tasks.jsonl, held_out_share: 0.25,\n"
        f"  command: [python, agent.py], files: {{agent.py: {tmp_path}/agent.py}}}}\n"
        f"policy: {{type: pretrained, model: {tmp_path}/model}}\n"
        "evaluation: {tasks: 2}\n"
    )
    return path


def test_one_attempt_is_shown_with_its_sequences_and_its_report(config: Path) -> None:
    result = invoke("env", "try", config)
    assert result.status == 0, result.errors
    assert "Sequence 1 of 1: 27 tokens of prompt, 4 tokens sampled, 0 tokens between" in result.output
    assert "[user]\nhow many?" in result.output
    assert result.output.endswith("[feedback]\n4 tokens\n\nReward 0.5, done (calls 1, sequences 1).\n")


def test_the_same_as_json(config: Path) -> None:
    found = invoke("env", "try", config, "--json").json
    (sequence,) = found["sequences"]
    assert (sequence["prompt_tokens"], sequence["sampled_tokens"], sequence["other_tokens"]) == (27, 4, 0)
    assert (found["reward"], found["feedback"], found["metrics"]["calls"]) == (0.5, "4 tokens", 1.0)


def test_nobody_else_takes_an_agents_turns(config: Path, tmp_path: Path) -> None:
    for command in (("play", config), ("qualify", config, "--store", tmp_path / "store")):
        result = invoke("env", *command)
        assert result.status != 0
        assert "environment.type: agent is played by an agent" in result.errors


def test_a_policy_that_a_run_has_to_make_first_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(SMALL)
    result = invoke("env", "try", path)
    assert result.status != 0
    assert "policy.type: tiny; only a pretrained policy can try a task without a run" in result.errors


def test_settings_that_would_count_sequences_one_by_one_are_refused(config: Path) -> None:
    result = invoke("config", "check", config, "--set", "objective.loss_normalization=sequence_mean")
    assert result.status != 0
    assert "allowed with an agent as environment is token_mean" in result.errors
    result = invoke("config", "check", config, "--set", "method={type: complementary}")
    assert result.status != 0
    assert "method complementary trains no agents yet" in result.errors


@pytest.mark.slow
def test_an_agent_that_is_written_can_be_tried_as_it_is(config: Path, tmp_path: Path) -> None:
    """With a model of random weights, whose answers are wrong."""
    written = invoke("env", "new", "my_agent", "--kind", "agent", "--folder", tmp_path / "my_agent")
    assert written.status == 0, written.errors
    assert "--editable" not in written.output
    model = ("--set", f"policy.model={tmp_path}/model", "--set", "policy.dtype=float32")
    result = invoke("env", "try", tmp_path / "my_agent" / "my_agent.yaml", *model)
    assert result.status == 0, result.errors
    assert "What is the opposite of" in result.output
    assert "Reward 0, done" in result.output

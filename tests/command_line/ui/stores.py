"""A store written by hand, so that the content of its pages can be seen by reading it, and one of hostile
texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from erl_pipeline.config.loading import load_config
from erl_pipeline.stages.names import AGENT_CALLS
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.memory.chain import ENTRIES_FILE
from storage.memory.entries import MEMORY
from storage.runs.run import RunStore
from storage.tables.agent_calls import AgentCall, write_agent_calls
from storage.tables.parquet import write_rows
from storage.tables.sequences import FURTHER_SEQUENCES
from storage.tables.training import SFT, SUPERVISED
from storage.tables.trajectories import TRAJECTORIES
from tests.command_line.invoke import SMALL
from tests.histories import entry_row, sft_row, trajectory_row
from tests.training_stores import NO_REWARD, TrainingStore, record

HOTPOTQA = Path(__file__).parents[3] / "configs" / "hotpotqa.yaml"
AGENT = Path(__file__).parents[3] / "examples" / "agents" / "longest_word.yaml"
BOARD = {
    "actions": {"a": "up", "b": "left", "c": "down", "d": "right"},
    "board": ["SF", "HG"],
    "max_steps": 4,
    "symbols": {"frozen": "#", "goal": "&", "hole": "$", "player": "@"},
}
"""Right, then down, leads to the goal; down leads into the hole."""
Turns = Sequence[str]
HOSTILE = {
    "script": "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "link": "[click](javascript:alert(1)) </textarea></title><svg onload=alert(1)>",
    "ansi": "\x1b[2J\x1b[31mred\x07",
    "direction": "abc\u202edef\u200b",
    "half": "a lone half: \ud83d.",
    "long": "x" * 1_000_000,
}


def small_config(folder: Path, name: str, **settings: str) -> dict[str, Any]:
    """The settings of a small run, as a run holds them."""
    file = folder / "small.yaml"
    file.write_text(SMALL)
    overrides = [f"{key}={value}" for key, value in settings.items()]
    config = load_config(file, [f"name={name}", *overrides])
    return config.model_dump(mode="json")


def trajectories(*rows: Mapping[str, Any]) -> Callable[[Path], object]:
    """Writes trajectories; `turns` are the texts of the policy; the environment answers each but the last."""

    def columns(row: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(row)
        messages = [{"role": "user", "content": "the board"}]
        for turn in given.pop("turns", ("down c",)):
            messages += [{"role": "assistant", "content": turn}, {"role": "user", "content": "moved"}]
        text = json.dumps(messages[:-1])
        return trajectory_row(**{"messages": text, "task_payload": json.dumps(BOARD), **given})

    return lambda folder: write_rows(
        folder / "trajectories.parquet", [columns(row) for row in rows], TRAJECTORIES
    )


FIRST = {"trajectory_id": "first", "group_id": "g/first", "turns": ("down c",)}
REFLECTION = {
    "trajectory_id": "reflection",
    "role": "reflection",
    "parent_trajectory_id": "first",
    "text": "go right",
    "group_id": "g/reflection",
    "reward": 1.0,
    "success": True,
    "turns": ("go right",),
    "revision_index": 1,
    "memory_version": "empty",
}
SECOND = {
    "trajectory_id": "second",
    "role": "second_attempt",
    "parent_trajectory_id": "reflection",
    "group_id": "g/second",
    "reward": 1.0,
    "success": True,
    "turns": ("right d", "down c"),
    "revision_index": 1,
    "response_token_ids": [3, 4],
    "response_mask": [1, 0],
    "behaviour_logprobs": [-0.5, 0.0],
}


REMEMBERED = {
    "m-east": {"vector": [2.0, 0.0], "credit": 0.5, "credit_count": 4, "text": "go right"},
    "m-west": {"vector": [-2.0, 0.0], "credit": -0.25, "credit_count": 2, "text": "go left"},
    "m-north": {"vector": [0.0, 1.0], "credit": 0.0, "text": "<b>go up</b>", "task_type": "lake-8x8"},
    "m-south": {"vector": [0.0, -1.0], "credit": 0.125, "credit_count": 1, "text": "go down", "support": 3},
}
"""Entries of the memory after iteration 1. Their mean is 0, and they differ most from east to west, so on the
map the place of each is given by its vector."""


def remembered(folder: Path) -> None:
    """Writes them."""
    rows = [entry_row(name, "reflection") | given for name, given in REMEMBERED.items()]
    write_rows(folder / ENTRIES_FILE, rows, MEMORY)


def write_page_store(folder: Path, store_uri: str | None = None) -> TrainingStore:
    """Run `one` with two iterations, and run `two`, which shares the first rollouts and has learned nothing.

    Iteration 1: an episode of task `t1`, failed, then solved after a reflection; the first attempt has no
    advantage and is not trained on, the other two are, and the second attempt is distilled; the memory gets
    four entries. Iteration 2: one failed first attempt at `t2`, which is trained on.
    """
    uri = store_uri or str(folder / "store")
    made = TrainingStore(ArtifactStore(uri), RunStore(uri))
    made.runs.create("one", small_config(folder, "one"))
    made.runs.create("two", small_config(folder, "two", **{"optimizer.learning_rate": "1e-3"}))
    made.commit("prepare_tasks", "tasks", None, run="one")
    made.commit("bootstrap", "checkpoint", None, {"tasks": "prepare_tasks"}, run="one")
    made.commit(
        "rollout_shard",
        "trajectories",
        1,
        {"checkpoint": "bootstrap"},
        trajectories(FIRST, REFLECTION, SECOND),
        run="one",
    )
    counts: dict[str, Any] = {
        f"{role}_count": 1 for role in ("first_attempt", "reflection", "second_attempt")
    }
    made.commit("generate_rollouts", "rollouts", 1, {"shard-0000": "rollout_shard"}, run="one", **counts)
    made.commit(
        "index_memory", "memory", 1, {"rollouts": "generate_rollouts"}, remembered, run="one", entries=4
    )
    trained = {"reward": 1.0, "success": True, "advantage": 0.5, "loss": -0.25, "mean_ratio": 1.0}
    tokens = {"token_logprobs": [-0.25, 0.0], "token_entropies": [0.75, 0.0], "mismatch": 0.25}
    rows = (
        {"trajectory_id": "first", "not_trained": "zero_advantage", "advantage": 0.0, "reward": 0.0},
        {"trajectory_id": "reflection", "role": "reflection", **trained},
        {"trajectory_id": "second", "role": "second_attempt", **trained, **tokens},
    )
    made.commit(
        "update_policy",
        "checkpoint",
        1,
        {"checkpoint": "bootstrap", "rollouts": "generate_rollouts"},
        record(*rows),
        run="one",
        sequences=2,
        dropped_zero_advantage=1,
        trained_tokens=6,
    )
    made.commit(
        "build_distillation",
        "sft_dataset",
        1,
        {"rollouts": "generate_rollouts"},
        lambda to: write_rows(to / "sft.parquet", [sft_row("s-second", "second")], SFT),
        run="one",
    )
    taught = {"trajectory_id": "second", "kind": SUPERVISED, "sft_row_id": "s-second", "role": "distilled"}
    made.commit(
        "fine_tune",
        "checkpoint",
        1,
        {"checkpoint": "update_policy", "dataset": "build_distillation"},
        record({**taught, **NO_REWARD}),
        run="one",
        rows=1,
        trained_tokens=3,
    )
    first = dict(made.ids)
    shared: list[tuple[str, ArtifactKind, int | None]] = [
        ("prepare_tasks", "tasks", None),
        ("bootstrap", "checkpoint", None),
        ("rollout_shard", "trajectories", 1),
        ("generate_rollouts", "rollouts", 1),
    ]
    for name, kind, iteration in shared:
        made.record(name, first[name], kind, iteration, "two")
    later = {"trajectory_id": "first-2", "task_id": "t2", "episode_id": "episode-2", "iteration": 2}
    made.commit(
        "rollout_shard", "trajectories", 2, {"checkpoint": "fine_tune"}, trajectories(later), run="one"
    )
    made.commit(
        "generate_rollouts", "rollouts", 2, {"shard-0000": "rollout_shard"}, run="one", first_attempt_count=1
    )
    made.commit(
        "update_policy",
        "checkpoint",
        2,
        {"checkpoint": "fine_tune", "rollouts": "generate_rollouts"},
        record({**later, "reward": 0.0, "success": False, "advantage": -0.5}),
        run="one",
        sequences=1,
        trained_tokens=3,
    )
    made.commit("fine_tune", "checkpoint", 2, {"checkpoint": "update_policy"}, run="one")
    made.ids.update(first)
    return made


def write_hostile_store(folder: Path) -> TrainingStore:
    """Run `one` with an episode for each hostile text; the episode's id is the name of the text."""
    uri = str(folder / "store")
    made = TrainingStore(ArtifactStore(uri), RunStore(uri))
    made.runs.create("one", small_config(folder, "one"))
    rows = []
    for name, text in HOSTILE.items():
        row = {"trajectory_id": f"first-{name}", "episode_id": name, "task_id": f"t-{name}", "turns": (text,)}
        if name != "half":  # only JSON can contain it
            row |= {"feedback": text, "group_id": f"<b>{name}</b>"}
        rows.append(row)
    made.commit("bootstrap", "checkpoint", None, run="one")
    made.commit(
        "rollout_shard", "trajectories", 1, {"checkpoint": "bootstrap"}, trajectories(*rows), run="one"
    )
    return made


SEARCHED = (
    "[1] River Ode: It flows past the town of Bragg.\n[2] <b>Holm</b> Castle: It stands in Sudland.\n"
    "4 turns are left."
)
"""The result of a search of HotpotQA; the question needs the first page."""


def searching_attempt(*turns: tuple[str, str], **given: Any) -> dict[str, Any]:
    """An attempt at a question that searches by tool calls, given as query and answer, and then answers."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Question: Who is the mayor?"}]
    for number, (query, answer) in enumerate(turns):
        function = {"name": "search", "arguments": {"query": query}}
        called = {"id": f"call{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": "", "tool_calls": [called]})
        messages.append(
            {"role": "tool", "content": answer, "tool_call_id": f"call{number}", "name": "search"}
        )
    messages.append({"role": "assistant", "content": "Answer: Anna Holm"})
    payload = {"question": "Who is the mayor?", "answer": "Anna Holm", "supporting": ["River Ode", "Bragg"]}
    return trajectory_row(
        messages=json.dumps(messages),
        task_payload=json.dumps(payload),
        task_type="hotpotqa-bridge",
        environment="hotpotqa",
        **given,
    )


def add_searches(made: TrainingStore) -> TrainingStore:
    """Run `asked`: an episode of HotpotQA with a first attempt of one search and a second one of two."""
    config = load_config(HOTPOTQA, ["name=asked", "environment.task_file=questions.json"])
    made.runs.create("asked", config.model_dump(mode="json"))
    first = searching_attempt(("river ode", SEARCHED), trajectory_id="first", feedback="One page is missing.")
    second = searching_attempt(
        ("river ode", SEARCHED),
        ("mayor of bragg", "[1] Bragg: Its mayor is Anna Holm.\n3 turns are left."),
        trajectory_id="second",
        parent_trajectory_id="first",
        role="second_attempt",
        revision_index=1,
        reward=1.0,
        success=True,
    )
    made.commit(
        "rollout_shard",
        "trajectories",
        1,
        {},
        lambda to: write_rows(to / "trajectories.parquet", [first, second], TRAJECTORIES),
        run="asked",
    )
    return made


def tool_call(number: int, query: str) -> dict[str, Any]:
    """A turn of the policy that calls a search."""
    function = {"name": "search", "arguments": {"query": query}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": f"call{number}", "function": function}]}


def tool_answer(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": f"call{number}", "name": "search"}


def sequence_row(messages: Sequence[Mapping[str, Any]], turns: int, **given: Any) -> dict[str, Any]:
    """A token sequence of an agent's attempt, in which the last `turns` of the policy were sampled, each as
    one token; one token lies between two turns."""
    mask = [1, 0] * turns
    tokens = {
        "response_token_ids": [3] * (2 * turns - 1),
        "response_mask": mask[:-1],
        "behaviour_logprobs": [-0.5] * (2 * turns - 1),
    }
    return trajectory_row(
        messages=json.dumps(messages), task_type="agent", environment="agent", **tokens, **given
    )


def agent_call(attempt_id: str = "first", **given: Any) -> AgentCall:
    """A call that was answered with one token in the first sequence: the policy took 0.5 s, all else 0.25."""
    usual: dict[str, Any] = {
        "call_id": "call",
        "choice": 0,
        "api": "chat",
        "sequence_index": 0,
        "start": 0,
        "end": 1,
        "finish": "stop",
        "streamed": False,
        "retry_of": None,
        "overridden": (),
        "problem": None,
        "arrived_ms": 0.0,
        "engine_ms": 500.0,
        "gateway_ms": 250.0,
    }
    return AgentCall(attempt_id, **(usual | given))


def add_agent(made: TrainingStore) -> TrainingStore:
    """Run `helper`: an episode of an agent, a failed attempt and one that succeeds.

    The agent makes two calls in the first attempt, and a third one that is refused. It has four sequences:
    one with a search and an answer; a branch of it with another answer to the search; a branch of that
    branch; and a sub-agent's conversation. In the second attempt the gateway puts a reflection into the
    system message.
    """
    config = load_config(AGENT, ["name=helper", "metrics=[]"])
    made.runs.create("helper", config.model_dump(mode="json"))
    made.commit("build_environment_files", "tasks", None, run="helper")
    made.commit("build_environment_files-0000", "tasks", 1, run="helper")
    system = {"role": "system", "content": "Be brief."}
    asked = {"role": "user", "content": "Who is the mayor?"}
    opening = [system, asked]
    found = [*opening, tool_call(0, "mayor"), tool_answer(0, "[1] Bragg has a <b>mayor</b>.")]
    other = [*opening, tool_call(0, "mayor"), tool_answer(0, "Nothing was found."), tool_call(1, "Bragg")]
    first = {"parent_trajectory_id": "first"}
    reflected = {"role": "system", "content": "Be brief. Reflection: read the second page."}
    second = {"role": "second_attempt", "revision_index": 1, "reward": 1.0, "success": True}

    def said(text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text}

    attempts = [
        sequence_row([*found, said("It is Bragg.")], 2, trajectory_id="first", feedback="Wrong name."),
        sequence_row(
            [reflected, asked, said("Anna Holm")],
            1,
            trajectory_id="second",
            parent_trajectory_id="first",
            **second,
        ),
    ]
    further = [
        sequence_row(other, 1, trajectory_id="branch", **first),
        sequence_row(
            [*other, tool_answer(1, "A town."), said("A small town.")], 1, trajectory_id="twig", **first
        ),
        sequence_row(
            [{"role": "system", "content": "You check names."}, asked, said("Checked.")],
            1,
            trajectory_id="checker",
            **first,
        ),
    ]

    calls = [
        agent_call(finish="tool_calls"),
        agent_call(sequence_index=1, start=2, end=5, arrived_ms=1250.0),
        agent_call(
            call_id=None,
            sequence_index=None,
            start=None,
            end=None,
            finish=None,
            problem="too_long",
            arrived_ms=1000.0,
            engine_ms=0.0,
            gateway_ms=0.0,
        ),
    ]

    def write(folder: Path) -> None:
        write_agent_calls(folder / AGENT_CALLS, calls)
        write_rows(folder / "trajectories.parquet", attempts, TRAJECTORIES)
        write_rows(folder / FURTHER_SEQUENCES, further, TRAJECTORIES)

    made.commit("rollout_shard", "trajectories", 1, {}, write, run="helper")
    return made

"""A mixture of two FrozenLakes of different sizes."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from erl_pipeline.config.loading import change_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.demonstrations import TinyParts
from erl_pipeline.environments.interface import EnvironmentPlugin, Task
from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.mixture.settings import MixtureConfig
from erl_pipeline.environments.mixture.tasks import turns
from erl_pipeline.plan.sources import read_sources
from erl_pipeline.stages.tasks.held_out import KeptApart, refuse_held_out
from erl_pipeline.stages.tasks.prepare_tasks import environment_identity, located
from storage.errors import ConfigError, InputError

LAKE: dict[str, Any] = {"type": "frozen_lake", "training_boards": 6, "path_length": [1, 2], "max_steps": 2}
PARTS: dict[str, Any] = {
    "small": {"weight": 3, "environment": {**LAKE, "rows": [2, 2], "holes": [0, 1], "twins": "any_split"}},
    "large": {"environment": {**LAKE, "rows": [3, 3]}},
}


def config(**parts: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "mixed",
            "iterations": 1,
            "environment": {"type": "mixture", "parts": {**PARTS, **parts}},
            "policy": {"type": "tiny"},
        }
    )


def plugin() -> EnvironmentPlugin[Any]:
    value: EnvironmentPlugin[Any] = plugins("environments")["mixture"].value
    return value


def said(**changed: Any) -> str:
    """The error for these settings of the part `small`."""
    part = {"small": {"environment": {**LAKE, **changed}}}
    with pytest.raises(ConfigError) as error:
        change_config(config(), [f"environment.parts={ {**PARTS, **part} }"])
    return str(error.value)


def test_tasks_are_told_apart_by_the_name_of_their_part() -> None:
    tasks = plugin().training_tasks(config().environment, 0)
    assert len(tasks) == 12
    first, last = tasks[0], tasks[-1]
    # Parts are in the order of their names.
    assert first.task_id == "large/frozen_lake-training-0-00000"
    assert (first.task_type, first.environment) == ("large/frozen_lake-3x3", "frozen_lake")
    assert (last.task_type, len(last.payload["board"])) == ("small/frozen_lake-2x2", 2)


def test_held_out_tasks_are_in_proportion_wherever_the_list_is_cut() -> None:
    found = plugin().held_out_tasks(config().environment, 0, 4)
    assert [task.task_id.partition("/")[0] for task in found] == ["small", "large", "small", "small"]
    assert plugin().held_out_tasks(config().environment, 0, 3) == found[:3]


def test_a_part_gets_its_own_task_and_plays_it() -> None:
    settings = config().environment
    task = plugin().training_tasks(settings, 0)[0]
    part, own = plugin().part(settings, task)
    assert (own.task_id, own.task_type) == ("frozen_lake-training-0-00000", "frozen_lake-3x3")
    assert part.settings == PARTS_OF["large"]
    assert part.plugin.splits.difficulty is not None
    environment = plugin().open(settings, task)

    async def play() -> str:
        await environment.reset()
        while not (await environment.step(AssistantTurn("nonsense"))).done:
            pass
        return await environment.feedback()

    assert asyncio.run(play())
    with pytest.raises(
        InputError, match="task none/1 belongs to no part of the mixture, which has large, small"
    ):
        plugin().part(settings, Task("none/1", "", "", {}))


MIXED = config().environment
assert isinstance(MIXED, MixtureConfig)
PARTS_OF = {name: part.environment for name, part in MIXED.parts.items()}


def test_the_tiny_policy_gets_the_words_of_all_parts_and_their_demonstrations_in_turn() -> None:
    tiny = plugin().tiny.parts(config().environment)
    assert tiny is not None
    alone = {
        name: plugins("environments")["frozen_lake"].value.tiny.parts(each) for name, each in PARTS_OF.items()
    }
    assert set(tiny.words) == set(alone["small"].words) | set(alone["large"].words)
    assert len(set(tiny.words)) == len(tiny.words)
    assert tiny.context_length == alone["large"].context_length
    episodes = tiny.demonstrations(random.Random(0), ColdStartConfig())
    shown = [next(episodes) for _ in range(4)]
    words = [{word for message in each[0] for word in message["content"].split()} for each in shown]
    assert all(each <= set(tiny.words) for each in words)


def test_the_cold_start_depends_on_no_weight() -> None:
    heavier = config(large={"weight": 9, "environment": PARTS["large"]["environment"]})
    assert plugin().tiny.shown(config().environment) == plugin().tiny.shown(heavier.environment)


def test_a_part_without_a_form_for_the_tiny_policy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy.type: tiny needs parts that each have a form"):
        config(large={"environment": {**LAKE, "format": "prose"}})


def test_files_of_parts_are_known_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "boards.jsonl"
    path.write_text('{"task_id": "t", "board": ["SF", "FG"], "max_steps": 2}\n')
    small = {**PARTS["small"]["environment"], "task_file": str(path)}
    with_file = config(small={"environment": small})
    sources = read_sources(with_file)
    assert list(sources.files) == [str(path)]
    assert set(sources.code["environment"]) == {
        "erl_pipeline.environments.mixture",
        "erl_pipeline.environments.frozen_lake",
        "erl_pipeline.environments.grid_games",
        "erl_pipeline.environments.prompt_format",
        "erl_pipeline.environments.tasks",
    }
    identity: Any = environment_identity(with_file)
    assert identity.parts["small"].environment.task_file is None
    digest = sources.files[str(path)]
    found = located(identity, {"parts.small.environment.task_file": digest}, {digest: str(path)})
    assert found == with_file.environment


def test_a_board_that_one_part_holds_out_is_not_trained_on_by_another() -> None:
    board = {"board": ["SF", "FG"], "max_steps": 2}
    held_out = Task("large/b", "large/x", "frozen_lake", {**board, "max_steps": 4})
    kept = KeptApart(plugin(), config().environment, 0, [held_out])
    with pytest.raises(InputError, match="training task small/a is the held-out task large/b"):
        refuse_held_out([Task("small/a", "small/x", "frozen_lake", board)], kept)


def test_the_splits_of_every_part_are_kept_from_training() -> None:
    """Also tasks beyond those that a run evaluates, whatever environment their rows name."""
    kept = KeptApart(plugin(), config().environment, 0, [])
    lakes = config().environment.parts  # type: ignore[attr-defined]
    for name, part in lakes.items():
        lake = plugins("environments")["frozen_lake"].value
        (task,) = lake.held_out_tasks(part.environment, 0, 1)
        assert kept.find("mine", task.payload) == "a task of the held-out split", name
        assert kept.find("mine", lake.training_tasks(part.environment, 0)[0].payload) is None


def test_what_cannot_be_is_told() -> None:
    assert "environment.parts.small.environment.max_steps: 0; allowed: at least 1" in said(max_steps=0)
    assert "environment.parts.small.environment.rowz: unknown key; did you mean rows?" in said(rowz=3)
    assert "environment.parts.small.environment.type: lake: no such type of environments" in said(type="lake")
    assert "environment.parts.small.environment.type: mixture within a mixture" in said(type="mixture")
    with pytest.raises(ValueError, match="allowed are two parts or more"):
        RunConfig.model_validate(
            {**config().model_dump(), "environment": {"type": "mixture", "parts": {"a": PARTS["small"]}}}
        )
    with pytest.raises(ValueError, match="'a/b': allowed are names of letters"):
        config(**{"a/b": PARTS["small"]})


def test_a_configuration_comes_back_from_its_json() -> None:
    assert change_config(config(), []) == config()


def test_each_skill_of_the_parts_is_examined_once_on_the_questions_of_all_that_teach_it() -> None:
    sokoban = {"type": "sokoban", "rows": [5, 5], "training_boards": 5}
    mixed = config(boxes={"environment": sokoban}).environment
    cold_start = ColdStartConfig()

    def asked(tiny: TinyParts | None) -> dict[str, int]:
        assert tiny is not None
        questions = {each.name: each.questions(random.Random(0), cold_start) for each in tiny.examinations}
        return {name: len(found) for name, found in questions.items()}

    alone = [asked(part.plugin.tiny.parts(part.settings)) for part in plugin().parts(mixed).values()]
    together = asked(plugin().tiny.parts(mixed))
    assert [sorted(each) for each in alone] == [
        ["best_moves_right", "seen_slots_right"],
        ["seen_slots_right"],
        ["seen_slots_right"],
    ]
    assert sorted(together) == ["best_moves_right", "seen_slots_right"]
    assert together["best_moves_right"] == alone[0]["best_moves_right"] > 0
    assert together["seen_slots_right"] > max(each["seen_slots_right"] for each in alone)


def test_turns_are_in_proportion_at_each_length() -> None:
    # Turns of a come at 1/6, 3/6, 5/6, of b at 1/2; at 1/2 it is the first part's turn first.
    assert turns({"a": 3.0, "b": 1.0}, 8) == ["a", "a", "b", "a", "a", "a", "b", "a"]
    assert turns({"a": 1.0, "b": 1.0}, 3) == ["a", "b", "a"]


def test_a_smaller_count_gives_the_beginning() -> None:
    weights = {"a": 0.2, "b": 0.5, "c": 0.3}
    assert turns(weights, 40)[:17] == turns(weights, 17)
    assert turns(weights, 40).count("b") == 20

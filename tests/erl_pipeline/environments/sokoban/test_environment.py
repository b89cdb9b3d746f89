from __future__ import annotations

import asyncio
import subprocess
import sys

from erl_pipeline.environments.messages import AssistantTurn
from erl_pipeline.environments.sokoban import ENVIRONMENT
from tests.erl_pipeline.environments.sokoban.games import ROWS, TRAP, settings, task


async def play(rows: tuple[str, ...], *texts: str, **changes: object) -> dict[str, float]:
    """The metrics of an attempt, added up over its turns."""
    environment = ENVIRONMENT.open(settings(**changes), task(rows))
    await environment.reset()
    total: dict[str, float] = {}
    for text in texts:
        transition = await environment.step(AssistantTurn(text))
        for name, value in transition.metrics.items():
            total[name] = total.get(name, 0.0) + value
    await environment.close()
    return total


def test_the_game_in_messages() -> None:
    async def attempt() -> None:
        environment = ENVIRONMENT.open(settings(), task())
        assert (environment.instructions, environment.tools) == ("", ())
        assert await environment.reset() == "D D D D D A B C D D D D start c5 c6"
        invalid = await environment.step(AssistantTurn("jump"))
        assert invalid.messages == [{"role": "user", "content": "bad c5 c6"}]
        assert (invalid.reward, invalid.done) == (0.0, False)
        end = await environment.step(AssistantTurn("right q"))
        assert (end.reward, end.done) == (1.0, True)
        assert await environment.feedback() == "solved"
        assert environment.trace().startswith(". . bad c5 c6 right q right c6 c7 .")

    asyncio.run(attempt())


def test_metrics_of_a_success() -> None:
    assert asyncio.run(play(ROWS, "jump", "up p", "up p", "down r")) == {
        "boxes_on_goals": 0.0,
        "deadlock": 0.0,
        "pushes": 0.0,
        "moves_without_effect": 1.0,
        "invalid_turns": 1.0,
    }
    assert asyncio.run(play(ROWS, "right q"))["boxes_on_goals"] == 1.0


def test_a_deadlock_counts_once_however_long_the_attempt_goes_on() -> None:
    total = asyncio.run(play(TRAP, "up p", "right q", "up p", "left s"))
    assert (total["deadlock"], total["pushes"], total["boxes_on_goals"]) == (1.0, 2.0, 0.0)


def test_boxes_on_goals_are_those_at_the_end() -> None:
    """One box is on its goal from the start; the other is pushed onto a goal, and off it again."""
    rows = ("#######", "#@$.  #", "#    *#", "#     #", "#######")
    changes: dict[str, object] = {"columns": (7, 7), "boxes": (2, 2)}
    assert asyncio.run(play(rows, "left s", **changes))["boxes_on_goals"] == 1.0
    rows = ("########", "#@$.   #", "#$.   *#", "#      #", "########")
    changes = {"columns": (8, 8), "format": "prose"}
    assert asyncio.run(play(rows, "[q]", **changes))["boxes_on_goals"] == 2.0
    assert asyncio.run(play(rows, "[q]", "[q]", **changes))["boxes_on_goals"] == 1.0


def test_another_attempt_begins_its_metrics_anew() -> None:
    async def twice() -> list[float]:
        environment = ENVIRONMENT.open(settings(), task())
        counted = []
        for _ in range(2):
            await environment.reset()
            end = await environment.step(AssistantTurn("right q"))
            counted.append(end.metrics["boxes_on_goals"])
        return counted

    assert asyncio.run(twice()) == [1.0, 1.0]


def test_the_package_loads_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, erl_pipeline.environments.sokoban\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""Pictures of attempts: the path that was taken, worked out by hand."""

from __future__ import annotations

from dataclasses import asdict

from erl_pipeline.config.plugins import plugins
from erl_pipeline.environments.interface import Task
from erl_pipeline.environments.pictures import Picture
from erl_pipeline.environments.sokoban.game import SokobanSymbols

WORDS = {"a": "up", "b": "left", "c": "down", "d": "right"}


def lake(*turns: str) -> Picture:
    plugin = plugins("environments")["frozen_lake"].value
    payload = {
        "actions": WORDS,
        "board": ["SF", "HG"],
        "max_steps": 4,
        "symbols": {"frozen": "#", "goal": "&", "hole": "$", "player": "@"},
    }
    task = Task("t", "frozen_lake-2x2", "frozen_lake", payload)
    picture: Picture = plugin.drawing.picture(plugin.settings(), task, turns)
    return picture


def test_a_way_to_the_goal() -> None:
    picture = lake("right d", "down c")
    assert picture.cells == [["start", "floor"], ["hole", "goal"]]
    assert picture.path == [(0, 0), (0, 1), (1, 1)]
    assert picture.notes == ["reached the goal"]


def test_bumps_and_answers_without_an_action_stay_where_they_were() -> None:
    picture = lake("up a", "nonsense", "down c", "right d")
    # The actions after the fall were never carried out.
    assert picture.path == [(0, 0), (0, 0), (0, 0), (1, 0)]
    assert picture.notes == ["1 × against the edge", "1 × no valid action", "fell into a hole"]


def test_sokoban_shows_the_push_and_where_the_box_ended() -> None:
    plugin = plugins("environments")["sokoban"].value
    settings = plugin.settings()
    symbols = asdict(SokobanSymbols(*settings.symbols))
    payload = {"actions": WORDS, "board": ["#####", "#@$.#", "#####"], "max_steps": 4, "symbols": symbols}
    picture = plugin.drawing.picture(settings, Task("t", "sokoban-3x5", "sokoban", payload), ["right d"])
    assert picture.cells[1] == ["wall", "start", "box", "goal", "wall"]
    assert picture.path == [(1, 1), (1, 2)]
    assert picture.boxes == [(1, 3)]
    assert picture.notes[0] == "1 push"

"""Answers that are moves: each checker replays them, one after the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from erl_pipeline.environments.reasoning_gym.checkers.reading import json_value, strings

_MOST_MOVES = 1_000
_MOST_PRESSES = 100
_DIRECTIONS = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}
_HANOI_MOVE = re.compile(r"Move disk (\d{1,3}) from Peg (\d{1,3}) to Peg (\d{1,3})")


def jugs(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """What the jugs hold after all moves."""
    listed_moves = strings(json_value(answer))
    if listed_moves is None or len(listed_moves) > _MOST_MOVES:
        yield 'The answer should be a JSON list of moves such as ["fill A"].'
        return
    capacities: Sequence[int] = metadata["puzzle"]["jug_capacities"]
    names = [chr(ord("A") + number) for number in range(len(capacities))]
    held = dict.fromkeys(names, 0)
    capacity = dict(zip(names, capacities, strict=True))
    for number, move in enumerate(listed_moves, start=1):
        match = re.fullmatch(r"(fill|empty) ([A-Z])|pour ([A-Z])->([A-Z])", move.strip())
        used = [name for name in match.groups()[1:] if name is not None] if match is not None else []
        if match is None or not set(used) <= set(names):
            yield f"Move {number} ({move[:40]}) is none of fill X, empty X and pour X->Y with the jugs here."
            return
        if match.group(1) is not None:
            held[used[0]] = capacity[used[0]] if match.group(1) == "fill" else 0
        else:
            source, into = used
            poured = min(held[source], capacity[into] - held[into])
            held[source] -= poured
            held[into] += poured
    target = metadata["puzzle"]["target"]
    if target not in held.values():
        amounts = ", ".join(f"{name}: {amount}" for name, amount in held.items())
        yield f"After all moves the jugs hold {amounts}, and none holds {target}."


def tower_of_hanoi(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The first move that breaks a rule, or what is missing at the end."""
    pegs: dict[int, list[int]] = {number: [] for number in range(1, metadata["num_pegs"] + 1)}
    pegs[metadata["start_peg"]] = list(range(metadata["num_disks"], 0, -1))
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    for number, line in enumerate(lines, start=1):
        match = _HANOI_MOVE.fullmatch(line)
        if match is None:
            yield f"Line {number} is not of the form Move disk X from Peg Y to Peg Z."
            return
        disk, source, into = map(int, match.groups())
        if source not in pegs or into not in pegs:
            yield f"Move {number} names a peg that does not exist."
            return
        if not pegs[source] or pegs[source][-1] != disk:
            yield f"Move {number}: disk {disk} is not on top of peg {source}."
            return
        if pegs[into] and pegs[into][-1] < disk:
            yield f"Move {number} puts disk {disk} on the smaller disk {pegs[into][-1]}."
            return
        pegs[into].append(pegs[source].pop())
    there, asked = len(pegs[metadata["target_peg"]]), metadata["num_disks"]
    if there < asked:
        yield f"After all moves {there} of {asked} disks are on peg {metadata['target_peg']}."


def shortest_path(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The first step that is not possible, or whether the path ends at the destination."""
    matrix: Sequence[Sequence[str]] = metadata["matrix"]
    steps = answer.split()
    if steps == ["infeasible"]:
        return
    row, column = next(
        (row, column) for row, cells in enumerate(matrix) for column, cell in enumerate(cells) if cell == "*"
    )
    for number, step in enumerate(steps, start=1):
        if step not in _DIRECTIONS:
            yield f"Step {number} ({step[:40]}) is none of up, down, left and right."
            return
        down, right = _DIRECTIONS[step]
        row, column = row + down, column + right
        if not (0 <= row < len(matrix) and 0 <= column < len(matrix[0])):
            yield f"Step {number} ({step}) leaves the grid."
            return
        if matrix[row][column] == "X":
            yield f"Step {number} ({step}) enters a blocked cell."
            return
    if matrix[row][column] != "#":
        yield f"After {len(steps)} steps the path is not at the destination."


def quantum_lock(metadata: Mapping[str, Any], answer: str) -> Iterator[str]:
    """The number that the presses lead to. A button that does not work at the light's colour does nothing."""
    presses = re.findall("[A-C]", answer.upper())
    if len(presses) > _MOST_PRESSES:
        return
    buttons = {button["name"]: button for button in metadata["buttons"]}
    value, light = metadata["initial_value"], metadata["initial_state"]
    for press in presses:
        button = buttons.get(press)
        if button is None or button["active_state"] not in (light, "any"):
            continue
        value = {
            "add": value + button["value"],
            "subtract": value - button["value"],
            "multiply": value * button["value"],
        }[button["type"]]
        light = "green" if light == "red" else "red"
    if value != metadata["target_value"]:
        yield f"These buttons lead to {value} instead of {metadata['target_value']}."

"""Find out which games of TextArena can be trained on: begin and play every single-player game.

    python benchmarks/qualify/textarena_games.py                # all games; writes games.toml
    python benchmarks/qualify/textarena_games.py FrozenLake-v0  # some; prints what was found, writes nothing

A game qualifies if it needs neither network nor server; if equal seeds give equal games, even in two
processes with different hash seeds; if its seeds give more than one game; and if no text makes it raise or
hang. The moves tried are those that its rules give as examples, and texts that are not moves.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from erl_pipeline.environments.textarena import library
from erl_pipeline.environments.textarena.library import VERSION, Game

SEEDS = range(1, 9)
PLAYED = 3
SECONDS_A_GAME = 30

UNFIT = {
    "Bandit": "its right choice is taken for a wrong one, so that nobody can win it",
    "Crosswords": "the moves of one reply are made in the order of a set, which differs between processes",
    "FifteenPuzzle": "its tiles are shuffled in any way, and half of all such boards cannot be solved",
    "LogicPuzzle": "it makes the moves of a reply in the order of a set; its 20 puzzles share 4 solutions",
    "Set": "its score counts what was found, and has no value that means that the game is won",
}
"""Games with a fault that such trials do not show."""

TEXTS = (
    "", " ", "hello", "[1]", "[]", "[[", "[-1]", "[0 0]", "[1 2 3 4]", "[99 99]", "[a]", "[up]", "[é]", "\0",
    "[" + "9" * 5000 + "]", "x" * 10_000, "[1e999999999]", "[None]", "[1.5 2]", "[١]",
)  # fmt: skip


class _TooLong(Exception):
    """A game took more than `SECONDS_A_GAME`."""


def examine(game: str) -> dict[str, Any]:
    """Begin and play a game. Returns digests of its beginnings, whether it draws random numbers in play, and
    a transcript; or what is wrong with it."""
    player = Game(game)
    starts = {}
    rules = ""
    for seed in SEEDS:
        rules = player.begin(seed).rules
        if type(player._env.state).__name__ != "SinglePlayerState":
            return {"several": True}
        starts[str(seed)] = player.state_digest()
        player.begin(seed)
        if player.state_digest() != starts[str(seed)]:
            return {"problem": "it begins in two ways with one seed"}
    draws, transcript = False, []
    moves = [*re.findall(r"\[[^\[\]\n]{1,30}\]", rules)[:12], *TEXTS]
    for seed in list(SEEDS)[:PLAYED]:
        for first in range(len(moves)):
            player.begin(seed)
            drawn = player._random
            # A game ends after a few invalid moves in a row, so each move gets a game in which it is first.
            for move in [*moves[first:], *moves[:first]] * 3:
                said, over = player.move(move)
                transcript.append(said.text[-200:])
                if over:
                    break
            if over:
                score = player.ending().score
                transcript.append(str(score))
                if score > 1.0:
                    return {"problem": f"it gives a score of {score:g}, above 1"}
            draws = draws or player._random != drawn
    return {"starts": starts, "draws": draws, "transcript": transcript}


def examine_all(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The findings of `examine` for each game; if it raises, the error is the game's problem."""

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError("no network here")

    def too_long(*arguments: object) -> None:
        raise _TooLong(f"it takes more than {SECONDS_A_GAME} seconds to begin and play a few games")

    socket.socket.connect = refuse  # type: ignore[method-assign]
    signal.signal(signal.SIGALRM, too_long)
    found = {}
    for name in names:
        signal.alarm(SECONDS_A_GAME)
        try:
            found[name] = examine(name)
        # Whatever a game raises is a finding.
        except (Exception, SystemExit) as error:
            found[name] = {"problem": _problem(error)}
        signal.alarm(0)
    return found


def _problem(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if re.search("player", text, re.IGNORECASE) and isinstance(error, (AssertionError, ValueError)):
        return "several"
    if isinstance(error, LookupError) and "NLTK" in text:
        return "it needs word lists that nltk downloads when it is imported"
    if isinstance(error, (FileNotFoundError, ImportError)):
        return "files that it needs are missing in the package"
    if "API key" in text:
        return "it asks a language model of a service"
    if isinstance(error, SyntaxError):
        return "its module is no valid Python 3.11"
    if isinstance(error, _TooLong):
        return text
    return f"it raises {type(error).__name__}: {text[:100]}"


def verdicts(
    one: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], list[str], dict[str, str]]:
    """The qualified games, those of them that draw random numbers in play, and why the others are refused.

    The arguments are the findings of two processes. Games for several players are left out.
    """
    qualified, drawn, refused = [], [], {}
    for name, found in one.items():
        if found.get("several") or found.get("problem") == "several":
            continue
        unfit = UNFIT.get(name.partition("-")[0])
        if unfit or "problem" in found:
            refused[name] = unfit or found["problem"]
        elif found != other[name]:
            refused[name] = "equal seeds give other games in another process"
        elif len(set(found["starts"].values())) == 1 and not found["draws"]:
            refused[name] = "all seeds give the same game"
        else:
            qualified.append(name)
            if found["draws"]:
                drawn.append(name)
    return qualified, drawn, refused


def list_text(qualified: Sequence[str], drawn: Sequence[str], refused: Mapping[str, str]) -> str:
    """The list in the form in which the package keeps it."""
    lines = [
        f"# Made by benchmarks/qualify/textarena_games.py with textarena {VERSION}.",
        *_names("qualified", qualified),
        "# They draw random numbers also while they are played.",
        *_names("drawn_in_play", drawn),
        "",
        "[refused]",
        *(f"{json.dumps(name)} = {json.dumps(reason)}" for name, reason in sorted(refused.items())),
    ]
    return "\n".join(lines) + "\n"


def _names(key: str, names: Sequence[str]) -> list[str]:
    return [f"{key} = [", *(f"    {json.dumps(name)}," for name in sorted(names)), "]"]


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == ["--found"]:
        print(json.dumps(examine_all(arguments[1:])))
        return
    from textarena.envs.registration import ENV_REGISTRY

    names = list(arguments) or [name.removesuffix("-raw") for name in ENV_REGISTRY if name.endswith("-raw")]
    found = [
        json.loads(
            subprocess.run(
                [sys.executable, __file__, "--found", *names],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
            ).stdout.splitlines()[-1]
        )
        for hash_seed in ("1", "2")
    ]
    text = list_text(*verdicts(found[0], found[1]))
    print(text)
    if not arguments:
        (Path(library.__file__).parent / library.LIST).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

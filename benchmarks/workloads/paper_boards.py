"""ERL with the tiny policy on the boards of the ERL paper, over several seeds.

    python benchmarks/workloads/paper_boards.py sokoban sokoban_train.jsonl --folder FOLDER --seeds 3 --write

Every third different board of the file is held out, and the others are for training, without those that are
a held-out board turned or mirrored. A seed is that of a run and of its cold start, so the spread over seeds
has both. The runs come one after another, in a store in FOLDER; the same command continues them. All
evaluations are of greedy first attempts on all held-out boards. `--write` puts them into
`results/paper_boards/GAME.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from storage.artifacts.store import ArtifactStore
from storage.runs.run import RunStore

RESULTS = Path(__file__).parents[1] / "results" / "paper_boards"
CONFIGS = Path(__file__).parents[2] / "configs"
GAMES: dict[str, tuple[str, Sequence[str]]] = {
    "sokoban": (
        "sokoban.yaml",
        ("environment.rows=[6,8]", "environment.inner_walls=[0,0]", "environment.solution_length=[1,8]"),
    ),
    "frozen_lake": ("frozen_lake_sizes.yaml", ()),
}
"""Game -> its configuration, and what is set besides files and seeds."""

_SUCCESS = {
    "greedy_success": "held_out_success",
    "greedy_success_low": "low",
    "greedy_success_high": "high",
}
_COLD_START = ("optimizer_steps", "seen_slots_right", "best_moves_right")


def split(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines with different boards, for training and held out."""
    first: dict[str, str] = {}
    for line in lines:
        first.setdefault(json.dumps(json.loads(line)["board"]), line)
    different = list(first.values())
    training = [line for place, line in enumerate(different) if place % 3 != 2]
    return training, different[2::3]


def train(folder: Path, game: str, seed: int, iterations: int, held_out: int) -> None:
    """Train the run of a seed, or continue it."""
    config, settings = GAMES[game]
    given = [
        *settings,
        f"seed={seed}",
        "policy.cold_start.seed=run",
        f"environment.task_file={folder / 'train.jsonl'}",
        f"environment.held_out_file={folder / 'held.jsonl'}",
        f"evaluation.tasks={held_out}",
    ]
    words = [word for each in given for word in ("--set", each)]
    command = [sys.executable, "-m", "command_line.main", "train", str(CONFIGS / config), "--no-prefect"]
    named = ["--name", f"{game}-{seed}", "--store", str(folder / "store"), "--iterations", str(iterations)]
    subprocess.run([*command, *named, *words], check=True)


def results(store: Path, game: str, seeds: Sequence[int]) -> dict[str, Any]:
    """The cold start and the evaluations of each seed, with the code that made them."""
    artifacts, runs = ArtifactStore(str(store)), RunStore(str(store))
    found: dict[str, Any] = {"code": set(), "cold_starts": {}, "boards": {}, "training_boards": None}
    for seed in seeds:
        found["boards"][str(seed)] = []
        for entry in runs.open(f"{game}-{seed}").stages():
            manifest = artifacts.open(entry.artifact_id).manifest
            found["code"].add(manifest.code_version)
            if manifest.stage == "prepare_tasks":
                found["training_boards"] = manifest.counters["training_tasks"]
            elif manifest.stage == "bootstrap":
                told = {**manifest.counters, **manifest.metrics}
                found["cold_starts"][str(seed)] = {
                    name: round(told[name], 4) for name in _COLD_START if name in told
                }
            elif manifest.stage == "evaluate":
                shares = {name: round(manifest.metrics[key], 4) for key, name in _SUCCESS.items()}
                found["boards"][str(seed)].append({"iteration": entry.iteration or 0, **shares})
    return {**found, "code": sorted(found["code"])}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("game", choices=GAMES)
    parser.add_argument("file", type=Path, help="the paper's boards, as JSON lines")
    parser.add_argument("--folder", type=Path, required=True, help="where files and store are")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--write", action="store_true", help="write the result file")
    given = parser.parse_args()
    training, held_out = split(given.file.read_text(encoding="utf-8").splitlines())
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("train", training), ("held", held_out)):
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for seed in range(given.seeds):
        train(folder, given.game, seed, given.iterations, len(held_out))
    boards = len(training) + len(held_out)
    found = {
        "about": f"configs/{GAMES[given.game][0]} on {boards:,} boards of the ERL paper's training set, "
        "every third one held out; training boards that are a held-out one turned or mirrored are left out; "
        f"a cold start of its own for each seed; greedy first attempts on all {len(held_out)} held-out "
        "boards, with 95 % intervals over boards; tiny policy",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        **results(folder / "store", given.game, range(given.seeds)),
    }
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if given.write:
        (RESULTS / f"{given.game}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

"""Six nights of a policy that serves simulated users, over seeds: the example of `examples/serving`.

    PYTHONPATH=benchmarks python benchmarks/learning/six_nights.py --seeds 3 --store nights --write

What a seed has printed is kept in the folder, and is not computed again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import measurements

SCRIPT = measurements.ROOT / "examples" / "serving" / "six_nights.py"
DAYS = 7
CONVERSATIONS = 96
_DAY = re.compile(r"day \d, .+?: mean reward ([.\d]+),")
_NIGHT = re.compile(r"night \d: held-out reward ([+-][.\d]+), .*; (not )?allowed")
Nights = Mapping[str, Sequence[float]]
"""Mean reward of each day, change of held-out reward in each night, and 1 for each night that was allowed."""


def nights(folder: Path, seed: int) -> Nights:
    """What one run has shown, which is made if it is not there."""
    log = folder / f"seed-{seed}.log"
    if not log.exists() or len(_DAY.findall(log.read_text())) < DAYS:
        words = f"--conversations {CONVERSATIONS} --set seed={seed} --store".split()
        command = [sys.executable, str(SCRIPT), *words, str(folder.absolute() / f"store-{seed}")]
        with log.open("w") as file:
            subprocess.run(command, stdout=file, check=True, cwd=measurements.ROOT)
    return read(log.read_text())


def read(text: str) -> Nights:
    """The figures in what the example has printed."""
    judged = _NIGHT.findall(text)
    return {
        "reward": [float(reward) for reward in _DAY.findall(text)],
        "held_out": [float(change) for change, _ in judged],
        "allowed": [float(not refused) for _, refused in judged],
    }


def result_table(results: Mapping[str, Nights]) -> list[list[str]]:
    """Rows of cells, the heading first: a row for each seed, with a cell for each day."""
    rows = [
        ["seed", *(f"day {day}" for day in range(1, DAYS + 1)), "nights allowed", "held-out reward, in all"]
    ]
    for seed, found in results.items():
        rewards = [f"{reward:.3f}".removeprefix("0") for reward in found["reward"]]
        allowed = f"{sum(found['allowed']):.0f} of {len(found['allowed'])}"
        change = sum(each for each, counts in zip(found["held_out"], found["allowed"], strict=True) if counts)
        rows.append([seed, *rewards, allowed, f"{change:+.3f}".replace("0.", ".", 1)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--store", type=Path, required=True, help="a folder for stores and logs")
    measurements.add_write_arguments(parser)
    arguments = measurements.parse_arguments(parser)
    measurements.require_checkpoint(measurements.SMOLLM2)
    arguments.store.mkdir(parents=True, exist_ok=True)
    machine = measurements.describe_machine(2, ["torch", "transformers"])
    results = {str(seed): nights(arguments.store, seed) for seed in range(arguments.seeds)}
    rows = result_table(results)
    print(measurements.as_text(rows), flush=True)
    if arguments.write:
        note = f"{arguments.seeds} seeds, {CONVERSATIONS} conversations a day."
        measurements.publish("six_nights", machine, results, note, measurements.as_markdown(rows))


if __name__ == "__main__":
    main()

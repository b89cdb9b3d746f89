"""The run that README.md and docs/quickstart.md show: the default configuration, and the page's commands.

    python benchmarks/readme_run.py --write

It trains in a new store, then runs the commands of the quickstart one after another, and stores all that they
print in `results/readme_run.json`. The tests compare both pages with it. The command that shows an episode
gets the first one that the command before it has listed.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measurements import add_write_arguments, describe_machine, parse_arguments

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).with_name("results") / "readme_run.json"
PROGRAM = str(Path(sys.executable).with_name("erl-pipeline"))
TRAIN = "erl-pipeline train configs/frozen_lake.yaml"
LANGUAGE_MODEL_RUN = "in-words"  # the quickstart's commands about it need weights


def quickstart_commands() -> list[str]:
    """The commands after a prompt, in order, without what follows them as a comment."""
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    found = re.findall(r"^\$ (erl-pipeline [^#\n]*[^#\s])", page, re.M)
    return [command for command in found if LANGUAGE_MODEL_RUN not in command]


def run(command: str, store: Path) -> str:
    """What a command prints to its standard output, with names in place of this machine's paths."""
    words = shlex.split(command)[1:]
    done = subprocess.run(
        [PROGRAM, *words, "--store", str(store)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    printed = done.stdout.replace(str(store), "store").replace(PROGRAM, "erl-pipeline")
    return "\n".join(line.rstrip() for line in printed.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_write_arguments(parser)
    given = parse_arguments(parser)
    machine = describe_machine(2, ("torch", "prefect"))
    printed: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        begun = time.monotonic()
        printed[TRAIN] = run(TRAIN, store).splitlines()
        seconds = time.monotonic() - begun
        episode = ""
        for command in quickstart_commands():
            output = run(command.replace("EPISODE", episode), store)
            printed[command] = output.splitlines()
            if listed := re.search(r"^ ([0-9a-f]{32}) ", output, re.M):
                episode = listed[1]
    text = json.dumps({"machine": machine, "seconds": round(seconds, 1), "printed": printed}, indent=1)
    print(text)
    if given.write:
        RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

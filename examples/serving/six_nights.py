"""Six nights of a policy that serves: simulated users ask it, some say what they think of its answers or what
they should have been, and each night it learns from that. The users change their mind once, after night
three.

    python examples/serving/six_nights.py --store store --conversations 96

It trains the run of `capitals.yaml` if the store lacks it, serves it with `erl-pipeline serve-policy`, talks
to it over HTTP as any client would, and lets `erl-pipeline learn` work each night. At the end it prints which
conversations taught the checkpoint that gave the last answer.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from zlib import crc32

import httpx

RUN = "capitals"
HERE = Path(__file__).parent
SETTINGS = HERE / "serving.yaml"
RATED = 0.7
"""Share of the conversations that users rate."""
CORRECTED = 1 / 3
"""Share of the answers that were rated, and not liked, with a comment and the answer that was wanted."""
USERS = 16
"""Conversations at the same time."""

Rule = Callable[[str], bool]


def is_short(answer: str) -> bool:
    """The form that users want until the third night: no more than seven words."""
    return 0 < len(answer.split()) <= 7


def has_no_full_stop(answer: str) -> bool:
    """The form that they want afterwards: an answer that does not end with a full stop."""
    return bool(answer.strip()) and not answer.rstrip().endswith(".")


@dataclass(frozen=True)
class Served:
    """A server, and a client of it."""

    client: httpx.Client
    lines: list[str]


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "command_line.main", *map(str, words)]


def run(*words: object) -> str:
    """What a command prints; its progress goes to standard error."""
    return subprocess.run(command(*words), check=True, stdout=subprocess.PIPE, text=True).stdout


@contextmanager
def serving(store: Path) -> Iterator[Served]:
    """`serve-policy` on a free port, until the end of the block."""
    words = command("serve-policy", RUN, "--store", store, "--config", SETTINGS, "--port", 0)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told: dict[str, str] = {}
        said: list[str] = []
        try:
            while "OpenAI's API" not in told:
                line = process.stderr.readline()
                if not line:
                    raise SystemExit(f"{''.join(said)}the server ended with status {process.wait()}")
                said.append(line)
                name, _, rest = line.partition(":")
                told[name.strip()] = rest.split("#")[0].strip()
            url, key = told["OpenAI's API"].removesuffix("/v1"), told["Key"]
            lines: list[str] = []
            reader = ThreadPoolExecutor(1)
            reader.submit(lambda: lines.extend(iter(process.stderr.readline, "")))  # type: ignore[union-attr]
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=url, headers=headers, timeout=600) as client:
                yield Served(client, lines)
        finally:
            process.terminate()
            process.wait()


def conversation(
    client: httpx.Client, rule: Rule, episode: str, question: str, capital: str, rates: bool, corrects: bool
) -> dict[str, Any]:
    """One user asks one question, and perhaps rates the answer and says what it should have been."""
    asked = {
        "model": RUN,
        "messages": [{"role": "user", "content": question}],
        "temperature": 1.0,
        "metadata": {
            "episode_id": episode,
            "user": f"user-{crc32(episode.encode()) % 50}",
            "task_type": "capitals",
        },
    }
    response = client.post("/v1/chat/completions", json=asked).raise_for_status()
    completion = response.json()
    answer = completion["choices"][0]["message"]["content"] or ""
    named = re.search(rf"\b{re.escape(capital)}\b", answer) is not None
    liked = named and rule(answer)
    said = {"thumbs": "up" if liked else "down"} if rates else {}
    if rates and corrects and not liked:
        said |= {"comment": "Just say the capital.", "correction": capital}
    for metric, value in said.items():
        given = {"call_id": completion["id"], "metric": metric, "value": value}
        client.post("/erl/v1/feedback", json=given).raise_for_status()
    client.post(f"/erl/v1/episodes/{episode}/close").raise_for_status()
    return {"liked": liked, "answer": answer, "call": completion["id"], "headers": dict(response.headers)}


def day(
    client: httpx.Client, number: int, tasks: Sequence[dict[str, str]], count: int
) -> list[dict[str, Any]]:
    """A day of conversations."""
    draw = random.Random(number)
    rule = is_short if number <= 3 else has_no_full_stop
    drawn = [(draw.choice(tasks), draw.random() < RATED, draw.random() < CORRECTED) for _ in range(count)]
    work = [
        (f"day-{number}-{each}", task["question"], task["answer"], *what)
        for each, (task, *what) in enumerate(drawn)
    ]
    with ThreadPoolExecutor(USERS) as users:
        return list(users.map(lambda each: conversation(client, rule, *each), work))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, default=Path("store"))
    parser.add_argument("--conversations", type=int, default=96, help="each day")
    parser.add_argument("--nights", type=int, default=6)
    parser.add_argument("--set", action="append", default=[], help="as of `erl-pipeline train`")
    given = parser.parse_args()
    tasks = [json.loads(line) for line in (HERE / "training.jsonl").read_text().splitlines()]
    changed = [word for each in given.set for word in ("--set", each)]
    run("train", HERE / "capitals.yaml", "--store", given.store, "--no-prefect", *changed)
    with serving(given.store) as served:
        for number in range(1, given.nights + 2):
            said = day(served.client, number, tasks, given.conversations)
            reward = fmean(each["liked"] for each in said)
            wanted = "at most seven words" if number <= 3 else "no full stop"
            print(f"day {number}, {wanted}: mean reward {reward:.3f}, {said[0]['answer']!r}", flush=True)
            if number <= given.nights:
                words = ("--promote", "--config", SETTINGS, "--store", given.store, "--json")
                learned = json.loads(run("learn", RUN, *words))
                nothing = learned["night"] is None
                told = f"nothing is trained: {learned['reason']}" if nothing else learned["verdict"]["reason"]
                print(f"night {number}: {told}", flush=True)
    last = said[-1]
    checkpoint = last["headers"]["x-erl-checkpoint"]
    print(f"The last answer, {last['call']}, is of checkpoint {checkpoint}. It was taught by:")
    print(run("lineage", "trained-on", checkpoint, "--store", given.store, "--limit", 8))


if __name__ == "__main__":
    main()

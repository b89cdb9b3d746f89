"""What environments and prompts cost besides sampling, and how long many episodes with a slow tool take.

    make smollm2
    python benchmarks/episode_work.py --runs 5 --write

The first table measures whole stages `rollout_shard` of ERL with SmolLM2-135M and the embedded engine. All
time outside the engine counts as work, by wall time and by processor time: environments, chat templates,
tokenization, parsing of answers, feedback, rows, Parquet and commit. The policy is loaded before.

The second table compares 64 simultaneous HotpotQA episodes, each with one to three searches of one second,
with the longest of them alone. The turns are scripted, so that only the searches take long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import measurements
from measurements import SMOLLM2, Column, Figures

if TYPE_CHECKING:
    from erl_pipeline.engines.interface import Generation, GenerationRequest
    from erl_pipeline.environments.hotpotqa.tasks import Passage
    from erl_pipeline.episodes.context import EpisodeContext
    from storage.tables.trajectories import Trajectory

Result = TypeVar("Result")

CONFIG = "configs/frozen_lake_smollm2.yaml"
SETTINGS = ("rollouts.tasks_per_iteration=2", "rollouts.tasks_per_shard=2", "rollouts.group_size=4")
MEMORYLESS = "method.memory=off"
WARM_UP = 1000
"""The number of an iteration that is not measured."""
SOKOBAN = {
    "type": "sokoban",
    "format": "prose",
    "actions": "named",
    "training_boards": 64,
    "max_steps": 6,
    "solution_length": [3, 6],
}
ROLLOUTS = {
    "FrozenLake, a plan for each attempt": (),
    "Sokoban, a turn for each move": (
        f"environment={json.dumps(SOKOBAN)}",
        "sampling.max_new_tokens=8",
        "method.sampling.reflection.max_new_tokens=8",
    ),
}
TOOL = "64 episodes with a slow tool"
EPISODES, LONGEST, TOOL_SECONDS = 64, 3, 1.0
WORK_COLUMNS = (
    Column("work_share", "work, % of the stage", 2, 100.0),
    Column("work_cpu_share", "the same by processor time", 2, 100.0),
    Column("seconds", "seconds"),
    Column("tokens", "sampled tokens", 0),
)
TOOL_COLUMNS = (
    Column("ratio", "all / the longest alone", 3),
    Column("together", "seconds of all", 2),
    Column("longest", "seconds of the longest alone", 2),
)


def main() -> None:
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        slow = arguments.contender == TOOL
        figures = measure_slow_tool() if slow else measure_rollouts(arguments.contender, arguments.threads)
        arguments.figures.write_text(json.dumps(figures))
        return
    measurements.require_checkpoint(SMOLLM2)
    machine = measurements.describe_machine(arguments.threads, ["torch", "transformers"])
    runs = measurements.alternate([*ROLLOUTS, TOOL], arguments.runs, ["--threads", str(arguments.threads)])
    parts = (({name: runs[name] for name in ROLLOUTS}, WORK_COLUMNS), ({TOOL: runs[TOOL]}, TOOL_COLUMNS))
    tables = []
    for part, columns in parts:
        # No contenders are compared here, so the column of ratios is dropped.
        rows = [row[:-1] for row in measurements.table(part, columns, columns[0], next(iter(part)))]
        print(measurements.as_text(rows), flush=True)
        tables.append(measurements.as_markdown(rows))
    if arguments.write:
        note = f"{arguments.runs} runs, medians (least to most)."
        measurements.publish("episode_work", machine, runs, note, "\n\n".join(tables))


def measure_rollouts(contender: str, threads: int) -> Figures:
    """One iteration's shards in this process, with the policy loaded."""
    from workloads.planned import planned_run

    from erl_pipeline.config.loading import load_config
    from erl_pipeline.engines.embedded.engine import TransformersEngine
    from erl_pipeline.stages.names import TRAJECTORIES
    from storage.tables.trajectories import read_trajectories

    sampling = {"seconds": 0.0, "cpu": 0.0}
    generate = TransformersEngine.generate

    def timed(self: TransformersEngine, requests: Sequence[GenerationRequest]) -> list[Generation]:
        began, cpu = time.perf_counter(), time.process_time()
        try:
            return generate(self, requests)
        finally:
            sampling["seconds"] += time.perf_counter() - began
            sampling["cpu"] += time.process_time() - cpu

    TransformersEngine.generate = timed  # type: ignore[method-assign]
    config = load_config(
        CONFIG, [*SETTINGS, MEMORYLESS, f"resources.threads={threads}", *ROLLOUTS[contender]]
    )
    with tempfile.TemporaryDirectory() as folder, planned_run(config, folder) as run:
        run.begin()
        one = config.rollouts.model_copy(update={"tasks_per_iteration": 1, "group_size": 1})
        run.execute_run(run.first_shards(WARM_UP, one))
        shards = run.first_shards(1)
        sampling.update(seconds=0.0, cpu=0.0)
        began, cpu = time.perf_counter(), time.process_time()
        outcomes = run.execute_run(shards)
        seconds, spent = time.perf_counter() - began, time.process_time() - cpu
        rows = read_trajectories(run.files(outcomes, TRAJECTORIES))
    return {
        "work_share": 1.0 - sampling["seconds"] / seconds,
        "work_cpu_share": 1.0 - sampling["cpu"] / spent,
        "seconds": seconds,
        "tokens": float(sum(sum(row.response_mask) for row in rows)),
    }


def measure_slow_tool() -> Figures:
    """Play all episodes at the same time, and the longest alone."""
    play(1)  # This imports and prepares what is needed only once.
    longest, together = play(1), play(EPISODES)
    return {"ratio": together / longest, "together": together, "longest": longest}


def play(count: int) -> float:
    """Seconds that this many episodes take; the first of them is the longest."""
    from erl_pipeline.environments.hotpotqa import ENVIRONMENT
    from erl_pipeline.environments.hotpotqa.environment import HotpotQA
    from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig
    from erl_pipeline.environments.interface import Task
    from erl_pipeline.environments.threads import in_threads
    from erl_pipeline.episodes.context import EpisodeLimits, Provenance, RoleLimits
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.episodes.play import ConcurrentSampling, EpisodeSetup, play_episodes
    from erl_pipeline.policies.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(SMOLLM2)
    payload = {
        "question": "Who is the mayor?",
        "answer": "Anna Holm",
        "supporting": ["Bragg"],
        "level": "easy",
    }
    tasks = [Task(f"task-{number}", "hotpotqa-bridge", "hotpotqa", payload) for number in range(count)]
    setup = EpisodeSetup(
        replace(ENVIRONMENT, open=lambda settings, task: in_threads(HotpotQA(settings, task, slow_search))),
        HotpotQAConfig(tool_format="plain"),
        first_attempt,
        ChatTokenizer(tokenizer),
        EpisodeLimits(
            context_length=4096,
            end_token_ids=frozenset({tokenizer.eos_token_id}),
            success_threshold=1.0,
            step_seconds=60.0,
            by_role={ROLE: RoleLimits(temperature=1.0, max_new_tokens=200)},
        ),
        Provenance("recipe", 1, {"policy": "scripted"}, "tokenizer", "", 0),
    )
    began = time.perf_counter()
    played = play_episodes(setup, tasks, range(1), ConcurrentSampling(Scripted(tokenizer), count))
    seconds = time.perf_counter() - began
    if not all(row.success for row in played.rows):
        raise RuntimeError("an episode did not go as its script says")
    return seconds


ROLE = "first_attempt"


async def first_attempt(context: EpisodeContext) -> list[Trajectory]:
    """The protocol: one attempt."""
    from erl_pipeline.environments.messages import opening
    from erl_pipeline.episodes.attempt import play_attempt
    from erl_pipeline.episodes.context import TurnKey

    place = TurnKey(ROLE, phase=0)
    attempt = await play_attempt(context, place, opening)
    return [attempt.row(context, place, None)]


def slow_search(query: str) -> list[Passage]:
    """A search that takes as long as one in a remote service."""
    from erl_pipeline.environments.hotpotqa.tasks import Passage

    time.sleep(TOOL_SECONDS)
    return [Passage("Bragg", f"A page about {query}. Its mayor is Anna Holm.")]


class Scripted:
    """A policy that searches three times in the first episode, and one to three times in the others."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._left: dict[str, int] = {}

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run episodes to their end."""
        return asyncio.run(work)

    async def sample(self, request: GenerationRequest) -> Generation:
        """The next turn of an episode."""
        from erl_pipeline.engines.interface import Generation

        left = self._left.setdefault(request.conversation, LONGEST - len(self._left) % LONGEST)
        self._left[request.conversation] = left - 1
        said = f"{'Search: Bragg' if left else 'Answer: Anna Holm'}{self._tokenizer.eos_token}"
        ids = self._tokenizer(said, add_special_tokens=False)["input_ids"]
        return Generation(tuple(ids), (-0.5,) * len(ids), "stop")


def _arguments() -> argparse.Namespace:
    return measurements.parse_arguments(measurements.argument_parser(__doc__))


if __name__ == "__main__":
    main()

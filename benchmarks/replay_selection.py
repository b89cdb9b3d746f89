"""Selecting what to replay from a large experience, in a worker that has just started and in one at work.

    python benchmarks/replay_selection.py --trajectories 1000000 --runs 5 --write

A store is generated with 50,000 tasks, which are tried in turn, 250 per iteration. Of the eight attempts of
each group, four are stored; every attempt has 16 prompt tokens and 16 response tokens. Nothing is sampled or
trained, so the tokens are random. The contender `first` is a worker that has just started: it opens and
hashes every version of the experience, then draws 64 tasks, and reads the stored attempts of each from the
rollouts that hold them. `next` is the same worker an iteration later, which reads only the new version. Both
end before the entropies of the candidates are computed; `replay_iteration.py` measures those.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import measurements
from measurements import Column, Figures

FIRST, NEXT = "first", "next"
TASKS, PER_ITERATION, STORED, DRAWN = 50_000, 250, 4, 64
COLUMNS = (
    Column("seconds", "seconds", 2),
    Column("experience_seconds", "of it experience", 2),
    Column("draw_seconds", "of it draw", 2),
    Column("read_seconds", "of it candidates", 2),
    Column("candidates", "candidates", 0),
    Column("peak_bytes", "peak GB", 2, 1e-9),
)


def main() -> None:
    arguments = _arguments()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    if arguments.contender:
        arguments.figures.write_text(json.dumps(measure(arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = arguments.store or folder
        generate(store, arguments.trajectories)
        measurements.compare_contenders(
            "replay_selection",
            [FIRST, NEXT],
            COLUMNS,
            arguments,
            ["--store", store],
            ["polars", "pyarrow"],
            f"{arguments.trajectories:,} stored attempts, ",
        )


def generate(uri: str, trajectories: int) -> None:
    """Write rollouts and experience, in as many iterations as the number of attempts needs, and one more."""
    from storage.artifacts.store import ArtifactStore

    store = ArtifactStore(uri)
    iterations = -(-trajectories // (PER_ITERATION * STORED)) + 1
    chance = random.Random(0)
    experience: str | None = None
    versions = []
    for iteration in range(1, iterations + 1):
        first = (iteration - 1) * PER_ITERATION % TASKS
        rows = list(_rows(iteration, range(first, first + PER_ITERATION), chance))
        experience = _commit(store, iteration, rows, experience)
        versions.append(experience)
        if iteration % 100 == 0:
            print(f"generated {iteration} of {iterations} iterations", flush=True)
    Path(uri, "versions.json").write_text(json.dumps(versions[-2:]))


def _rows(iteration: int, tasks: range, chance: random.Random) -> Iterator[Any]:
    """The stored attempts of an iteration."""
    from storage.tables.trajectories import Trajectory

    for task in tasks:
        prompt = tuple(chance.choices(range(100), k=16))
        for sample in range(STORED):
            name = f"{chance.getrandbits(128):032x}"
            yield Trajectory(
                trajectory_id=name,
                episode_id=name,
                parent_trajectory_id=None,
                iteration=iteration,
                task_id=f"task-{task:06d}",
                task_type="generated",
                environment="generated",
                role="first_attempt",
                revision_index=0,
                sample_index=sample,
                group_id=f"{iteration}/task-{task:06d}/first_attempt/0",
                subgroup=None,
                prompt_token_ids=prompt,
                response_token_ids=tuple(chance.choices(range(100), k=16)),
                response_mask=(1,) * 16,
                behaviour_logprobs=tuple(-chance.random() for _ in range(16)),
                temperature=1.0,
                policy_version="0" * 32,
                tokenizer_digest="0" * 32,
                reward=1.0,
                success=True,
                finish_reason="done",
                truncated=False,
                feedback="",
                messages="[]",
                memory_version="",
                memory_entry_ids=(),
                seed=chance.getrandbits(62),
                task_payload="{}",
            )


def _commit(store: Any, iteration: int, rows: list[Any], parent: str | None) -> str:
    """Commit the artifacts of one iteration; return the id of its experience."""
    from erl_pipeline.config.replay import EXPERIENCE
    from erl_pipeline.stages.training.replay.experience import write_experience
    from erl_pipeline.stages.training.replay.index_experience import response_digest
    from storage.artifacts.recipe import Recipe
    from storage.tables.trajectories import write_trajectories

    index = {"iteration": iteration}
    shard = Recipe("rollout_shard", 1, {}, {}, 0, index=index, kind="trajectories")
    with store.create(shard, run="generated", iteration=iteration) as staging:
        count = write_trajectories(staging.path / "trajectories.parquet", rows)
        staging.commit(rows={"trajectories.parquet": count})
    rollouts = Recipe(
        "generate_rollouts", 1, {}, {"shard-0000": shard.artifact_id}, 0, index=index, kind="rollouts"
    )
    with store.create(rollouts, run="generated", iteration=iteration) as staging:
        staging.commit()
    tried = [rows[place] for place in range(0, len(rows), STORED)]
    groups = (
        {
            "task_id": row.task_id,
            "iteration": iteration,
            "policy_version": row.policy_version,
            "group_size": 8,
            "fresh": 8,
            "replayed": 0,
            "successes": 1 + (place + iteration) % 7,
            "status": "active",
        }
        for place, row in enumerate(tried)
    )
    members = (
        {
            "task_id": row.task_id,
            "trajectory_id": row.trajectory_id,
            "rollouts_id": rollouts.artifact_id,
            "iteration": iteration,
            "response_digest": response_digest(row),
            "quality": None,
            "tier": None,
            "trainer_logprobs": None,
            "logprob_policy_version": None,
        }
        for row in rows
    )
    before = {} if parent is None else {EXPERIENCE: parent}
    recipe = Recipe("index_experience", 1, {}, before, 0, index=index, kind="experience")
    with store.create(recipe, run="generated", iteration=iteration) as staging:
        written = write_experience(staging.path, groups, members)
        staging.commit(rows=written, counters={"begun": 1})
    return recipe.artifact_id


def measure(arguments: argparse.Namespace) -> Figures:
    """Make one selection in this process, without the entropies."""
    import polars as pl

    from erl_pipeline.config.replay import BucketSettings, DrawSettings, TierSettings
    from erl_pipeline.stages.training.replay.draw import draw_replay
    from erl_pipeline.stages.training.replay.experience import read_candidates, read_experience
    from storage.artifacts.store import ArtifactStore

    before, version = json.loads(Path(arguments.store, "versions.json").read_text())
    store = ArtifactStore(arguments.store)
    rules = DrawSettings(
        sampler="exgrpo", share=0.5, tasks_per_iteration=2 * DRAWN, group_size=8, buckets=BucketSettings(),
        pick="lowest", tiers=TierSettings(), max_age=None, max_per_task=None,
    )  # fmt: skip

    def select(version: str, known: dict[str, Any], seed: int) -> Figures:
        marks = [time.perf_counter()]
        experience = read_experience(store, version, known)
        known[version] = experience
        marks.append(time.perf_counter())
        drawn = draw_replay(experience, rules, 10**6, random.Random(seed))
        marks.append(time.perf_counter())
        candidates = read_candidates(store, pl.concat([each.members for each in drawn]))
        marks.append(time.perf_counter())
        experience_seconds, draw_seconds, read_seconds = (after - before for before, after in pairwise(marks))
        return {
            "seconds": marks[-1] - marks[0],
            "experience_seconds": experience_seconds,
            "draw_seconds": draw_seconds,
            "read_seconds": read_seconds,
            "candidates": float(len(candidates)),
            "stored": float(len(experience.members)),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        }

    known: dict[str, Any] = {}
    figures = select(before, known, 0)
    return figures if arguments.contender == FIRST else select(version, known, 1)


def _arguments() -> argparse.Namespace:
    parser = measurements.argument_parser(__doc__)
    parser.add_argument("--trajectories", type=int, default=1_000_000, help="stored attempts")
    parser.add_argument("--store", help="folder to generate in, instead of a temporary one")
    return measurements.parse_arguments(parser)


if __name__ == "__main__":
    main()

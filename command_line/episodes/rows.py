"""Reading episodes from Parquet: lists of many, or all that is known of one."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import polars as pl

from command_line.selectors import the_one
from erl_pipeline.views.report.episodes import outcomes
from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import ArtifactKind
from storage.artifacts.store import ArtifactStore
from storage.lineage.trained_on import record_file, training_data
from storage.memory.chain import texts_of
from storage.runs.run import Run
from storage.tables.agent_calls import AGENT_CALLS, scan_agent_calls
from storage.tables.parquet import scan_files
from storage.tables.scored import with_measured
from storage.tables.sequences import attempt_files
from storage.tables.training import scan_training_records
from storage.tables.trajectories import TRAJECTORIES, says, scan_trajectories

Outcome = Literal["solved", "helped", "failed", "not_scored"]
"""As `outcomes` says them."""

EPISODES: tuple[ArtifactKind, ...] = ("trajectories", "evaluation")
REPLAYED: tuple[ArtifactKind, ...] = ("replay",)
_FILE = "file"
_SHOWN = (
    "trajectory_id",
    "parent_trajectory_id",
    "episode_id",
    "iteration",
    "task_id",
    "task_type",
    "environment",
    "sample_index",
    "role",
    "revision_index",
    "group_id",
    "subgroup",
    "reward",
    "success",
    "finish_reason",
    "feedback",
    "messages",
    "text",
    "temperature",
    "policy_version",
    "memory_version",
    "memory_entry_ids",
    "task_payload",
)


@dataclass(frozen=True)
class EpisodeFilter:
    """Which episodes to give; None for all. `min_reward` is compared with the best reward in an episode;
    `text` is searched for in the policy's messages of all its trajectories."""

    task: str | None = None
    task_type: str | None = None
    outcome: Outcome | None = None
    min_reward: float | None = None
    text: str | None = None


def run_episodes(
    store: ArtifactStore, run: Run, span: tuple[int, int] | None, *, held_out: bool
) -> list[Manifest]:
    """The artifacts of a run that hold its episodes, or those of its evaluations, in the ledger's order.

    For an offline run, those that it trained on. `span` is the first and last iteration; None for all.
    """
    find = cache(store.find)
    found: dict[str, None] = {}
    for entry in run.stages():
        iteration = entry.iteration or 0
        if span is not None and not span[0] <= iteration <= span[1]:
            continue
        if entry.kind == ("evaluation" if held_out else "trajectories"):
            found[entry.artifact_id] = None
        elif entry.kind == "checkpoint" and not held_out:
            found.update(dict.fromkeys(training_data(find, [entry.artifact_id])))
    manifests = [find(artifact_id) for artifact_id in found]
    return [manifest for manifest in manifests if manifest is not None]


def trajectory_paths(
    store: ArtifactStore, manifests: Iterable[Manifest], kinds: Collection[ArtifactKind] = EPISODES
) -> dict[Path, Manifest]:
    """The Parquet files of attempts and texts in artifacts of these kinds, verified, each with its artifact.

    Replays are left out by default: they repeat trajectories of other artifacts.
    """
    return {
        path: manifest
        for manifest in manifests
        if manifest.kind in kinds and manifest.tables(TRAJECTORIES.name)
        for path in attempt_files([store.open_found(manifest)])
    }


def list_episodes(
    files: Sequence[Path], wanted: EpisodeFilter, limit: int
) -> tuple[int, list[dict[str, Any]]]:
    """How many episodes meet a filter, and at most `limit` of them: the newest iteration first, then by task
    and sample. `roles` and `rewards` are in the order of the episode's trajectories; a reward is None where
    nothing was scored."""
    rows = scan_trajectories(files)
    for name, value in (("task_id", wanted.task), ("task_type", wanted.task_type)):
        if value is not None:
            rows = rows.filter(pl.col(name) == value)
    episodes = outcomes(rows)
    if wanted.outcome is not None:
        episodes = episodes.filter(pl.col("outcome") == wanted.outcome)
    if wanted.min_reward is not None:
        episodes = episodes.filter(pl.col("best") >= pl.lit(wanted.min_reward, pl.Float32))
    if wanted.text is not None:
        episodes = episodes.join(
            rows.filter(says(wanted.text)).select("episode_id"), on="episode_id", how="semi"
        )
    order = ["iteration", "task_id", "sample_index", "episode_id"]
    found = episodes.drop("best", "retried").sort(order, descending=[True, False, False, False]).collect()
    shown = found.head(limit)
    parts = (
        rows.select("episode_id", "role", "reward")
        .filter(pl.col("episode_id").is_in(shown["episode_id"].implode()))
        .group_by("episode_id", maintain_order=True)
        .agg(roles="role", rewards="reward")
        .collect()
    )
    return found.height, shown.join(parts, on="episode_id", how="left", maintain_order="left").to_dicts()


def find_episode(paths: dict[Path, Manifest], identifier: str) -> tuple[list[dict[str, Any]], Manifest]:
    """The trajectories of an episode, by its id or the beginning of one, and the artifact that holds them.

    Raises InputError for none or several.
    """
    found = (
        scan_files(list(paths), TRAJECTORIES, _FILE)
        .filter(pl.col("episode_id").str.starts_with(identifier))
        .select("episode_id", _FILE)
        .unique()
        .sort("episode_id", _FILE)
        .collect()
    )
    missing = f"no episode has an id {identifier!r}; `erl-pipeline episodes list RUN` shows them."
    episode_id = the_one(found["episode_id"].unique().sort().to_list(), identifier, "episodes", missing)
    # Artifacts that hold it have the same rows, or one has reflections on those of another.
    files = [Path(each) for each in found.filter(pl.col("episode_id") == episode_id)[_FILE]]
    of_it = with_measured(scan_files(files, TRAJECTORIES, _FILE)).filter(pl.col("episode_id") == episode_id)
    rows = of_it.select(*_SHOWN, _FILE).unique("trajectory_id", keep="first", maintain_order=True).collect()
    beginning = rows.filter(pl.col("parent_trajectory_id").is_null())
    holder = Path((beginning if beginning.height else rows)[_FILE][0])
    return rows.drop(_FILE).to_dicts(), paths[holder]


def episode_training(
    store: ArtifactStore, manifests: Sequence[Manifest], episode_id: str
) -> dict[str, list[dict[str, Any]]]:
    """What updates did with the trajectories of an episode: trajectory id -> rows of training records, with
    the `checkpoint`, `stage`, `run` and iteration (`trained_in`) of the update, the earliest first.

    Rows of a replayed trajectory are listed with those of the original trajectory.
    """
    replays = list(trajectory_paths(store, manifests, REPLAYED))
    copies = scan_trajectories(replays).filter(pl.col("episode_id") == episode_id)
    originals = dict(copies.select("trajectory_id", "parent_trajectory_id").collect().iter_rows())
    files = {
        str(store.open_file(manifest, name)): manifest
        for manifest in manifests
        if (name := record_file(manifest)) is not None
    }
    rows = scan_training_records([Path(path) for path in files], _FILE)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows.filter(pl.col("episode_id") == episode_id).collect().to_dicts():
        manifest = files[row.pop(_FILE)]
        made = {
            "checkpoint": manifest.artifact_id,
            "stage": manifest.stage,
            "run": manifest.run,
            "trained_in": manifest.iteration,
        }
        trajectory_id = originals.get(row["trajectory_id"], row["trajectory_id"])
        found.setdefault(trajectory_id, []).append({**made, **row})
    for each in found.values():
        each.sort(key=lambda row: (row["trained_in"] or 0, row["run"], row["kind"]))
    return found


def agent_calls(
    store: ArtifactStore, holder: Manifest, rows: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """The calls of agents in an episode: trajectory id of the attempt -> its calls, in order."""
    paths = store.open_found(holder).rows_paths(AGENT_CALLS.name)
    attempts = [row["trajectory_id"] for row in rows]
    found: dict[str, list[dict[str, Any]]] = {}
    for call in scan_agent_calls(paths).filter(pl.col("attempt_id").is_in(attempts)).collect().to_dicts():
        found.setdefault(call.pop("attempt_id"), []).append(call)
    return found


def memory_texts(store: ArtifactStore, rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Texts of the memory entries in the prompts of trajectories, as far as the store has them; by id."""
    texts: dict[str, str] = {}
    for row in rows:
        if row["memory_entry_ids"]:
            texts |= texts_of(store, row["memory_version"], row["memory_entry_ids"])
    return texts

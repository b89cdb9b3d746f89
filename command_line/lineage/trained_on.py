"""What a policy learned from."""

import textwrap
from collections.abc import Mapping
from typing import Any

import polars as pl

from command_line.lineage.reach import SHORT
from command_line.output import counted, one_line, print_json, print_line, print_table
from command_line.selectors import find_checkpoint, find_id, is_place
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.lineage.trained_on import INHERITED, RowFilter, TrainedOn
from storage.runs.run import RunStore
from storage.serving.collected import SERVED_TRAJECTORIES

_SHOWN = (
    "how",
    "policy",
    "kind",
    "trajectory_id",
    "sft_row_id",
    "episode_id",
    "iteration",
    "task_id",
    "task_type",
    "role",
    "reward",
    "success",
    "advantage",
    "weight",
    "steps",
    "trained_tokens",
    "loss",
)


_ENTRIES = 12
"""Most memory entries that are printed; --json gives all."""
_WIDTH = 100


def show_trained_on(
    checkpoint: str, run: str | None, wanted: RowFilter, limit: int, store: str, json: bool
) -> None:
    """Print what a policy learned from, and at most `limit` of the rows."""
    artifacts = ArtifactStore(store)
    found = TrainedOn(artifacts, _resolve(artifacts, checkpoint, run))
    rows = found.rows(wanted)
    counts, tasks, first = pl.collect_all(
        [_summary(rows), rows.select(pl.col("task_id").n_unique()), rows.select(_SHOWN).head(limit)]
    )
    summary, shown = counts.to_dicts(), found.texts(first)
    served = found.beside(first, SERVED_TRAJECTORIES)
    total = sum(group["rows"] for group in summary)
    if not total and wanted.role is not None:
        _require_role(found, wanted.role)
    entries = found.memory_entries(rows)
    policy = found.line[0].manifest
    if json:
        print_json(
            {
                "checkpoint": policy.artifact_id,
                "stage": policy.stage,
                "iteration": policy.iteration,
                "policies": [_policy(each) for each in found.line],
                "total": total,
                "summary": summary,
                "memory_entries": entries.to_dicts(),
                "rows": [{**row, "served": served.get(row["trajectory_id"])} for row in shown.to_dicts()],
            }
        )
        return
    print_line(
        f"Checkpoint {policy.artifact_id[:SHORT]} ({policy.stage}, run {policy.run}) learned from "
        f"{counted(total, 'row')} of {counted(tasks.item(), 'task')}."
    )
    _print_gaps(found)
    print_table(
        [{name: _number(value) for name, value in group.items()} for group in summary],
        left=("how", "kind", "role"),
    )
    if any(group["how"] == INHERITED for group in summary):
        print_line(_how_line(found))
    if total:
        print_line(_memory_line(entries))
    cells = [{**_cells(row), **_traffic(row, served)} for row in shown.to_dicts()]
    print_table(cells, left=("how", "role", "task", "text", "served episode", "calls"))
    if total > shown.height:
        print_line(f"{total - shown.height:,} more: --limit {total}")
    if total:
        print_line(f"Where a row came from: erl-pipeline lineage upstream {policy.run} ROW")


def _require_role(found: TrainedOn, role: str) -> None:
    """Raise InputError for a role that no row has, if there are rows."""
    known = found.rows(RowFilter()).select(pl.col("role").unique().sort()).collect()["role"].to_list()
    if known and role not in known:
        raise InputError(f"--role {role}: no row has this role; the rows are of {', '.join(known)}")


def _resolve(store: ArtifactStore, checkpoint: str, run: str | None) -> str:
    if run is not None:
        return find_checkpoint(store, RunStore(store.uri).open(run), checkpoint).artifact_id
    if is_place(checkpoint):
        raise InputError(f"{checkpoint}: of which run? Name it with --run RUN.")
    return find_id(store, checkpoint)


def _summary(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Rows and trained tokens by how, kind and role; those of the policy's own training first."""
    return (
        rows.group_by("how", "kind", "role")
        .agg(
            depth=pl.col("depth").min(),
            rows=pl.len(),
            tasks=pl.col("task_id").n_unique(),
            policies=pl.col("policy").n_unique(),
            trained_tokens=pl.col("trained_tokens").sum(),
            mean_reward=pl.col("reward").mean(),
        )
        .sort("depth", "kind", "role")
        .drop("depth")
    )


def _policy(policy: Any) -> dict[str, Any]:
    manifest = policy.manifest
    return {
        "artifact_id": manifest.artifact_id,
        "stage": manifest.stage,
        "run": manifest.run,
        "iteration": manifest.iteration,
        "updates_before": policy.depth,
        "has_record": policy.record_file is not None,
    }


def _print_gaps(found: TrainedOn) -> None:
    without = found.without_record
    if without:
        print_line(
            f"{counted(len(without), 'policy', 'policies')} of its line left no training record, such as "
            "those of earlier versions of this program: what they learned from is not counted."
        )


def _how_line(found: TrainedOn) -> str:
    """What `directly` and `by inheritance` mean for this policy."""
    own, *before = (policy.manifest for policy in found.line if policy.record_file or not policy.depth)
    beside = [each.stage for each in before if (each.run, each.iteration) == (own.run, own.iteration)]
    also = f", also {' and '.join(beside)} of the same iteration" if beside else ""
    return _filled(
        f"directly: in {_training(own)}, which made this checkpoint; by inheritance: in the trainings before "
        f"it{also}"
    )


def _training(manifest: Manifest) -> str:
    return manifest.stage + ("" if manifest.iteration is None else f" of iteration {manifest.iteration}")


def _memory_line(entries: pl.DataFrame) -> str:
    if entries.is_empty():
        return "No memory entry stood in the prompts of these rows."
    first = entries["entry_id"].head(_ENTRIES).to_list()
    rest = entries.height - len(first)
    verb = counted(entries.height, "memory entry stood", "memory entries stood")
    ids = ", ".join(each[:SHORT] for each in first) + (f"; {rest:,} more: --json" if rest else "")
    return _filled(f"{verb} in the prompts of these rows: {ids}")


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _traffic(row: dict[str, Any], served: Mapping[str, dict[str, Any]]) -> dict[str, str]:
    """Which served episode a row was made of, and its calls; no columns where none of the rows was."""
    if not served:
        return {}
    found = served.get(row["trajectory_id"])
    if found is None:
        return {"served episode": "", "calls": ""}
    return {"served episode": found["episode_id"], "calls": ", ".join(found["call_ids"])}


def _cells(row: dict[str, Any]) -> dict[str, str]:
    return {
        "row": (row["sft_row_id"] or row["trajectory_id"])[:SHORT],
        "how": row["how"],
        "policy": row["policy"][:SHORT],
        "iteration": str(row["iteration"]),
        "role": row["role"],
        "task": row["task_id"],
        "reward": _number(row["reward"]),
        "advantage": _number(row["advantage"]),
        "tokens": str(row["trained_tokens"]),
        "text": one_line(row["text"], " | "),
    }


def _number(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:.3g}" if isinstance(value, float) else str(value) if isinstance(value, str) else f"{value:,}"
    )

"""The report of a run as one self-contained HTML file, made from the templates of the page.

The file holds its style sheets, scripts and numbers. It loads nothing, and runs no other script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from markupsafe import Markup

from erl_pipeline.config.run import RunConfig
from erl_pipeline.evaluation import history as stored
from erl_pipeline.evaluation.iterations import history_rows
from erl_pipeline.plan.column import Column
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.statistics import PairedDifference
from erl_pipeline.views.report import tables
from erl_pipeline.views.report.curves import ChartedRun, curves_as_numbers, role_rewards
from erl_pipeline.views.report.episodes import (
    EpisodeParts,
    TaskPicture,
    drawing_of,
    episode_parts,
    in_order,
    outcomes,
    task_picture,
)
from erl_pipeline.views.report.templating import static_text, templates
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.filesystem import open_root, open_to_write, refuse_linked_path
from storage.memory.chain import texts_of
from storage.runs.documents import BranchOrigin, OfflineOrigin, read_origin, read_warnings
from storage.runs.run import Run
from storage.tables.trajectories import scan_trajectories
from storage.texts import storable

_STYLES = ("vendor/uplot/uPlot.min.css", "page.css")
_SCRIPTS = ("vendor/uplot/uPlot.iife.min.js", "curves.js")


@dataclass(frozen=True)
class EpisodeGroup:
    """The episodes of one iteration that the report shows."""

    iteration: int
    episodes: Sequence[EpisodeExample]


@dataclass(frozen=True)
class RunDescription:
    """What a report needs to know of a run besides its artifacts: the columns and roles of its method, how
    many iterations are complete, and a sentence about its environment, such as whether it is qualified."""

    columns: Sequence[Column]
    roles: Sequence[str]
    done: int
    environment: str = ""
    config: RunConfig | None = None
    """The configuration with which the environment draws its tasks; None: tasks are shown as text."""


def write_report(store: ArtifactStore, run: Run, description: RunDescription, output: Path) -> Path:
    """Write the report of a run, whatever its state; return `output`.

    Raises:
        StoreError: an artifact that the ledger names is missing or damaged, or `output` cannot be written.
    """
    page = render_report(store, run, description)
    refuse_linked_path(open_root(store.uri).scratch, output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with open_to_write(output, "wb") as file:
            file.write(page.encode("utf-8"))
    except OSError as error:
        raise StoreError(f"the report cannot be written to {output}: {error.strerror}") from error
    return output


def render_report(store: ArtifactStore, run: Run, description: RunDescription) -> str:
    """The report as HTML text."""
    history = stored.read_history(store, run)
    origin = read_origin(store.uri, run.name)
    columns = description.columns
    rollouts = stored.of_kind(history, "rollouts")
    shards = [path for record in rollouts for path in _shard_files(store, record)]
    rewards = role_rewards(scan_trajectories(shards), description.roles) if shards else {}
    charted = ChartedRun(run.name, history, columns, rewards)
    text = (
        templates(None, _nowhere)
        .get_template("report.html.j2")
        .render(
            style=_OwnText("style-src", *map(static_text, _STYLES)),
            script=_OwnText("script-src", *map(static_text, _SCRIPTS)),
            curves=curves_as_numbers([charted], "iteration"),
            name=run.name,
            summary=tables.summary_line(run.config, history, description.done),
            environment=description.environment,
            warnings=[warning.sentence for warning in read_warnings(store.uri, run.name)],
            result=tables.held_out_result(
                stored.learning_curve(history), _change(store, stored.held_out_evaluations(history))
            ),
            tiles=tables.tiles(history, columns),
            evaluations=tables.evaluation_table(history, columns),
            iterations=tables.iteration_table(
                [row for row in history_rows(history, columns) if row.values], columns, titles=True
            ),
            stages=tables.stage_table(history),
            episode_groups=_episode_groups(
                store, rollouts, stored.of_kind(history, "memory"), description.config
            ),
            settings=yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True),
            history=history,
            listed={record.manifest.artifact_id for record in history},
            versions=tables.version_rows(history),
            approximate=sum(record.manifest.determinism == "approximate" for record in history),
            origin=origin,
            commands=_commands(run, history, origin),
        )
    )
    return storable(text)


def _nowhere(*parts: str | int, **query: object) -> str:
    """The addresses of a file: always empty, since it has no other pages to link to."""
    return ""


class _OwnText:
    """Our own style sheets or scripts as one text, and the security rule that allows only that text."""

    def __init__(self, directive: str, *texts: str) -> None:
        joined = "\n".join(texts)
        # The text is not escaped, so it must not contain the end of its own element.
        assert "</style" not in joined
        assert "</script" not in joined
        self.text = Markup(joined)
        digest = base64.b64encode(hashlib.sha256(joined.encode("utf-8")).digest()).decode("ascii")
        self.rule = f"{directive} 'sha256-{digest}'"


def _shard_files(store: ArtifactStore, rollouts: stored.StageRecord) -> list[Path]:
    """The trajectory files of an iteration's rollouts, verified, in the order of the shards.

    Files that retention has pruned hold rewards and ids, but no texts.
    """
    shards = rollouts.manifest.inputs
    # Attempts alone: further sequences of agents' attempts would count them again.
    return [store.open(shards[name]).rows_path(TRAJECTORIES) for name in sorted(shards)]


def _has_texts(store: ArtifactStore, rollouts: stored.StageRecord) -> bool:
    return not any(store.open(shard).pruned.files for shard in rollouts.manifest.inputs.values())


def _change(store: ArtifactStore, evaluations: Sequence[stored.StageRecord]) -> PairedDifference | None:
    """Compare the first evaluation with the last, task by task; None where the attempts are missing."""
    if len(evaluations) < 2:
        return None
    before, after = (record.manifest.artifact_id for record in (evaluations[0], evaluations[-1]))
    return stored.paired_outcomes(store, before, after)


def _episode_groups(
    store: ArtifactStore,
    rollouts: Sequence[stored.StageRecord],
    memory: Sequence[stored.StageRecord],
    config: RunConfig | None,
) -> list[EpisodeGroup]:
    """Examples from the first, the middle and the last of the iterations whose texts are still stored."""
    rollouts = [record for record in rollouts if _has_texts(store, record)]
    if not rollouts:
        return []
    groups, newest = [], texts_of(store, memory[-1].manifest.artifact_id) if memory else {}
    for index in sorted({0, (len(rollouts) - 1) // 2, len(rollouts) - 1}):
        rows = scan_trajectories(_shard_files(store, rollouts[index]))
        # Rollouts of another run saw versions that this run did not make.
        texts = newest | texts_of(store, rollouts[index].manifest.memory_version)
        groups.append(EpisodeGroup(rollouts[index].iteration, example_episodes(rows, texts, config)))
    return groups


def _commands(
    run: Run, history: Sequence[stored.StageRecord], origin: BranchOrigin | OfflineOrigin | None
) -> list[str]:
    """Shell lines that repeat the run. They name the commit if all artifacts come from one clean commit.

    `train` does not repeat a run that was begun from another. For such a run, the lines compare the two.
    """
    if origin is not None:
        return [
            f"# begun {origin.describe()}, in the same store, with the settings above",
            f"erl-pipeline diff {origin.run} {run.name}",
            f"erl-pipeline lineage verify {run.name}",
        ]
    versions = {record.manifest.code_version for record in history}
    commit = versions.pop() if len(versions) == 1 else ""
    done = max((record.iteration for record in history), default=0)
    longer = f" --iterations {done}" if done > run.config["iterations"] else ""
    return [
        *([f"git checkout {commit}"] if re.fullmatch("[0-9a-f]{40}", commit) else []),
        f"# the settings above, saved as {run.name}.yaml",
        f"erl-pipeline train {run.name}.yaml --store another-store{longer}",
        f"erl-pipeline lineage verify {run.name} --store another-store",
    ]


_TOKENS = ("prompt_token_ids", "response_token_ids", "response_mask", "behaviour_logprobs")
"""Columns that are long, and not shown."""
_KINDS = {
    "helped": "Solved at a later attempt",
    "not_helped": "Failed, also at later attempts",
    "solved": "Solved at the first attempt",
    "failed": "Failed, and not tried again",
}


@dataclass(frozen=True)
class EpisodeExample:
    """A whole episode and its kind."""

    kind: str
    episode_id: str
    task_id: str
    sample_index: int
    task: TaskPicture
    shown: EpisodeParts


def example_episodes(
    rollouts: pl.LazyFrame, memory_texts: Mapping[str, str], config: RunConfig | None = None
) -> list[EpisodeExample]:
    """One episode of each kind among an iteration's rollouts: the first in order of task and sample.

    `memory_texts` maps the id of a memory entry to its text. `config` is the run's configuration, whose
    environment draws the task. Kinds that did not occur are left out, and so are episodes that were not
    scored. An episode that failed without a second attempt is shown only if no episode had a second attempt.
    """
    chosen = _choose(rollouts)
    rows = rollouts.drop(_TOKENS).filter(pl.col("episode_id").is_in(list(chosen.values()))).collect()
    return [
        _example(
            _KINDS[kind], rows.filter(pl.col("episode_id") == episode_id).to_dicts(), memory_texts, config
        )
        for kind, episode_id in chosen.items()
    ]


def _choose(rollouts: pl.LazyFrame) -> dict[str, str]:
    """Episode ids by kind."""
    scored = outcomes(rollouts).filter(pl.col("outcome") != "not_scored")
    episodes = scored.sort("task_id", "sample_index").collect()
    failed, retried = pl.col("outcome") == "failed", pl.col("retried")
    kinds = {
        "helped": pl.col("outcome") == "helped",
        "not_helped": failed & retried,
        "solved": pl.col("outcome") == "solved",
    }
    if not episodes["retried"].any():
        kinds["failed"] = failed
    found = {kind: episodes.filter(condition)["episode_id"] for kind, condition in kinds.items()}
    return {kind: ids[0] for kind, ids in found.items() if not ids.is_empty()}


def _example(
    kind: str, rows: list[dict[str, Any]], memory_texts: Mapping[str, str], config: RunConfig | None
) -> EpisodeExample:
    rows = in_order(rows)
    return EpisodeExample(
        kind=kind,
        episode_id=rows[0]["episode_id"],
        task_id=rows[0]["task_id"],
        sample_index=rows[0]["sample_index"],
        task=task_picture(json.loads(rows[0]["task_payload"])),
        shown=episode_parts(rows, memory_texts, drawing_of(config, rows[0])),
    )

"""What a policy that serves has said, what people said of that, and which checkpoint answers, and why."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl
from fastapi import APIRouter
from starlette.responses import HTMLResponse

from command_line.ui.pages import ARunVisit
from command_line.ui.stored import Stored
from storage.artifacts.manifest import Manifest
from storage.filesystem import open_root
from storage.serving.aliases import alias_changes, verdicts
from storage.serving.collected import COLLECT_STAGE, SERVED_TRAJECTORIES, traffic_run
from storage.serving.traffic import Record, read_record, segments
from storage.tables.parquet import scan_files

router = APIRouter(prefix="/runs/{name}")


@dataclass(frozen=True)
class ServedEpisode:
    """An episode of collected traffic, as clients know it. `records` are what the log of the served run has
    of it, the oldest first: calls, feedback, its end. None of them where the log is no longer there.

    `sealed` are ids of the turns and the feedback that the rows were made of; what came later is in no batch.
    """

    run: str
    episode_id: str
    user: str
    tenant: str
    sequences: int
    not_trainable: str
    records: Sequence[Record]
    sealed: frozenset[str]

    def is_late(self, record: Record) -> bool:
        """Whether a record came after the episode was collected."""
        if record.type == "end":
            return False
        return (record.turn_id if record.type == "turn" else record.feedback_id) not in self.sealed

    @property
    def has_late(self) -> bool:
        return any(map(self.is_late, self.records))


def served_episode(
    stored: Stored, holder: Manifest, rows: Sequence[Mapping[str, Any]]
) -> ServedEpisode | None:
    """An episode, given by its rows from the artifact `holder`, as it was served; None if it was not."""
    if holder.stage != COLLECT_STAGE:
        return None
    paths = stored.artifacts.open_found(holder).rows_paths(SERVED_TRAJECTORIES.name)
    first = pl.col("trajectory_id") == rows[0]["trajectory_id"]
    client = scan_files(paths, SERVED_TRAJECTORIES).filter(first).select("episode_id", "tenant")
    found = scan_files(paths, SERVED_TRAJECTORIES).join(client, on=["episode_id", "tenant"], how="semi")
    served = found.collect().to_dicts()
    run, episode_id, tenant = holder.settings["run"], served[0]["episode_id"], served[0]["tenant"]
    return ServedEpisode(
        run,
        episode_id,
        served[0]["user"],
        tenant,
        len(served),
        served[0]["not_trainable"],
        _records(stored.uri, run, episode_id, tenant),
        frozenset(each for row in served for each in (*row["turn_ids"], *row["feedback_ids"])),
    )


def _records(store_uri: str, run: str, episode_id: str, tenant: str) -> list[Record]:
    """Those of an episode. Only lines in which its id stands are read: a log may be long."""
    if not open_root(store_uri).local:
        return []
    named = json.dumps(episode_id, ensure_ascii=False).encode()
    found = []
    for path in segments(store_uri, run):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if named in line and line.endswith(b"\n"):
                    record = read_record(line, f"{path}, line {number}")
                    if (record.episode_id, record.tenant) == (episode_id, tenant):
                        found.append(record)
    return sorted(found, key=_time)


def _time(record: Record) -> datetime:
    return record.arrived if record.type == "turn" else record.received


@router.get("/serving")
def serving(here: ARunVisit) -> HTMLResponse:
    """The aliases of a served run, their changes, and the verdicts of its gate."""
    stored, name = here.stored, here.name
    changes = alias_changes(stored.uri, name) if open_root(stored.uri).local else []
    names, traffic = set(stored.names()), traffic_run(name)
    return here.page(
        "serving.html.j2",
        "Serving",
        [here.crumb("serving", "serving")],
        commands=[
            here.command("Answer calls with it", "serve-policy", name),
            here.command("Let an alias mean another checkpoint", "promote", name, "--checkpoint", "ID"),
            here.command("Back to what it meant before", "promote", name, "--to", "previous"),
        ],
        aliases={change.alias: change for change in changes},
        changes=changes[::-1],
        verdicts=verdicts(stored.uri, name)[::-1] if changes else [],
        runs=names,
        traffic=traffic if traffic in names else "",
    )

"""`erl-pipeline lineage upstream|downstream`: all that something came from or reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.lineage.listing import DEFAULT_LIMIT, SHORT, Identifier, Limit, print_first
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import counted, print_json, print_line, print_table
from command_line.selectors import artifact_or_row

if TYPE_CHECKING:
    from storage.artifacts.store import ArtifactStore
    from storage.lineage import Reach, Reached
    from storage.lineage.rows import Kind
    from storage.runs.run import Run

Depth = Annotated[int | None, typer.Option("--depth", min=1, help="Most steps to follow; default: all.")]

_WORDS: dict[Kind, tuple[str, str]] = {
    "artifact": ("artifact", "artifacts"),
    "trajectory": ("trajectory", "trajectories"),
    "memory_entry": ("memory entry", "memory entries"),
    "sft_row": ("SFT row", "SFT rows"),
}


def upstream(
    run: RunName,
    identifier: Identifier,
    depth: Depth = None,
    limit: Limit = DEFAULT_LIMIT,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List everything that an artifact or a row came from, the nearest first."""
    from storage import lineage

    reach, runs = _walk(lineage.upstream, store, run, identifier, depth)
    if json:
        print_json({"kind": reach.kind, "id": reach.id, "things": _described(reach, runs)})
        return
    print_line(f"{_title(reach)} came from {_counted(reach.things)}.")
    _print_things(reach.things, runs, limit)


def downstream(
    run: RunName,
    identifier: Identifier,
    depth: Depth = None,
    limit: Limit = DEFAULT_LIMIT,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """List all that an artifact or a row reached: rows, policies, evaluations, in all runs of the store."""
    from erl_pipeline.views.lineage.influence import policies_reached, scores_reached
    from storage import lineage
    from storage.lineage.questions import DIRECTLY

    reach, runs = _walk(lineage.downstream, store, run, identifier, depth)
    policies, scores = policies_reached(reach), scores_reached(reach)
    if json:
        print_json(
            {
                "kind": reach.kind,
                "id": reach.id,
                "policies": [asdict(policy) for policy in policies],
                "evaluations": [asdict(score) for score in scores],
                "things": _described(reach, runs),
            }
        )
        return
    print_line(f"{_title(reach)} reached {_counted(reach.things)}.")
    direct = [policy for policy in policies if policy.how == DIRECTLY]
    heirs = len(policies) - len(direct)
    print_line(
        f"{counted(len(direct), 'policy', 'policies')} trained on it or on what came of it, "
        f"{heirs:,} {'descends' if heirs == 1 else 'descend'} from {'that' if len(direct) == 1 else 'those'}."
    )
    print_table(
        [
            {
                "score": score.artifact_id[:SHORT],
                "of policy": score.policy[:SHORT],
                "trained on it": score.how,
                "iteration": str(score.iteration),
                "run": score.run,
                "held-out": f"{score.greedy_success:.3f}",
            }
            for score in scores[:limit]
        ],
        left=("score", "of policy", "trained on it", "run"),
    )
    _print_things(reach.things, runs, limit)


def _walk(
    walk: Callable[[ArtifactStore, Run, str, int | None], Reach],
    store_uri: str,
    run: str,
    identifier: str,
    depth: int | None,
) -> tuple[Reach, dict[str, list[str]]]:
    """What a walk from an artifact or row of a run reaches, and the runs of each artifact."""
    from storage.artifacts.store import ArtifactStore
    from storage.lineage import runs_by_artifact
    from storage.runs.run import RunStore

    runs = RunStore(store_uri)
    opened = runs.open(run)
    found = walk(ArtifactStore(store_uri), opened, artifact_or_row(opened, identifier), depth)
    return found, runs_by_artifact(runs)


def _title(reach: Reach) -> str:
    return f"{_WORDS[reach.kind][0].capitalize()} {reach.id}".replace("Sft", "SFT")


def _counted(things: Sequence[Reached]) -> str:
    counts = Counter(thing.kind for thing in things)
    parts = [f"{counts[kind]:,} {words[counts[kind] != 1]}" for kind, words in _WORDS.items() if counts[kind]]
    return ", ".join(parts) or "nothing"


def _described(reach: Reach, runs: dict[str, list[str]]) -> list[dict[str, Any]]:
    return [
        {**asdict(thing), **({"runs": runs.get(thing.id, [])} if thing.kind == "artifact" else {})}
        for thing in reach.things
    ]


def _print_things(things: Sequence[Reached], runs: dict[str, list[str]], limit: int) -> None:
    print_first(
        [
            {
                "steps": str(thing.depth),
                "what": str(thing.facts.get("stage") or thing.facts.get("role") or _WORDS[thing.kind][0]),
                # Ids of rows may begin alike, so they are shown in full.
                "id": thing.id[:SHORT] if thing.kind == "artifact" else thing.id,
                "iteration": _shown(thing.facts.get("iteration")),
                "how": f"{thing.relation} {thing.via[:SHORT]}",
                "task or runs": str(thing.facts.get("task_id") or ", ".join(runs.get(thing.id, []))),
            }
            for thing in things[:limit]
        ],
        total=len(things),
        left=("what", "id", "how", "task or runs"),
        rest="more, further away",
    )


def _shown(value: object) -> str:
    return "" if value is None else str(value)

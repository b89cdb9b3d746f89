"""All that something came from or reached, and which policies and evaluation scores are among it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from command_line.output import command, counted, print_json, print_line, print_table
from command_line.selectors import artifact_or_row
from storage.artifacts.store import ArtifactStore
from storage.lineage import reach as lineage
from storage.lineage.graph import runs_by_artifact
from storage.lineage.questions import DESCENDANT, DIRECTLY
from storage.lineage.reach import Reach, Reached
from storage.lineage.rows import Kind
from storage.runs.run import Run, RunStore

SHORT = 12
"""Characters of an artifact's id that are shown, enough to distinguish it."""


def print_first(
    rows: Sequence[Mapping[str, str]], total: int, left: Sequence[str], rest: str = "more"
) -> None:
    """Print the first rows of `total` as a table, and say how to get the others."""
    print_table(rows, left=left)
    if total > len(rows):
        print_line(f"{total - len(rows):,} {rest}: --limit {total}, or --json for all.")


def policies_reached(reach: Reach) -> list[dict[str, Any]]:
    """The policies among the things that were reached, by iteration. `how` says whether their own training
    read what reached them, or only that of an ancestor."""
    found = [
        {
            "policy": thing.id,
            "how": DIRECTLY if thing.id in reach.trained else DESCENDANT,
            **{name: thing.facts[name] for name in ("stage", "iteration", "run")},
        }
        for thing in _artifacts(reach)
        if thing.facts["kind"] == "checkpoint"
    ]
    return sorted(found, key=lambda policy: policy["iteration"])


def scores_reached(reach: Reach) -> list[dict[str, Any]]:
    """Held-out scores of the policies that were reached, by iteration; `how` is the policy's."""
    how = {policy["policy"]: policy["how"] for policy in policies_reached(reach)}
    found = [
        {
            "artifact_id": thing.id,
            "policy": policy,
            "how": how[policy],
            **{name: thing.facts[name] for name in ("iteration", "run")},
            "greedy_success": thing.facts["metrics"]["greedy_success"],
        }
        for thing in _artifacts(reach)
        if thing.facts["kind"] == "evaluation" and (policy := thing.facts["policy_version"]) in how
    ]
    return sorted(found, key=lambda score: score["iteration"])


def _artifacts(reach: Reach) -> Sequence[Reached]:
    return [thing for thing in reach.things if thing.kind == "artifact" and thing.facts]


_WORDS: dict[Kind, tuple[str, str]] = {
    "artifact": ("artifact", "artifacts"),
    "trajectory": ("trajectory", "trajectories"),
    "memory_entry": ("memory entry", "memory entries"),
    "sft_row": ("SFT row", "SFT rows"),
}


def show_upstream(run: str, identifier: str, depth: int | None, limit: int, store: str, json: bool) -> None:
    """Print what something came from, at most `depth` steps away, in at most `limit` lines."""
    reach, runs = _walk(lineage.upstream, store, run, identifier, depth)
    if json:
        print_json({"kind": reach.kind, "id": reach.id, "things": _described(reach, runs)})
        return
    print_line(f"{_title(reach)} came from {_counted(reach.things)}.")
    _print_things(reach.things, runs, limit)


def show_downstream(run: str, identifier: str, depth: int | None, limit: int, store: str, json: bool) -> None:
    """Print what something reached, at most `depth` steps away, in at most `limit` lines."""
    reach, runs = _walk(lineage.downstream, store, run, identifier, depth)
    policies = policies_reached(reach)
    scores = scores_reached(reach)
    if json:
        print_json(
            {
                "kind": reach.kind,
                "id": reach.id,
                "policies": policies,
                "evaluations": scores,
                "things": _described(reach, runs),
            }
        )
        return
    print_line(f"{_title(reach)} reached {_counted(reach.things)}.")
    direct = sum(policy["how"] == DIRECTLY for policy in policies)
    heirs = len(policies) - direct
    print_line(
        f"{counted(direct, 'policy', 'policies')} trained on it or on what came of it, "
        f"{heirs:,} {'descends' if heirs == 1 else 'descend'} from {'that' if direct == 1 else 'those'}."
    )
    print_table(
        [
            {
                "score": score["artifact_id"][:SHORT],
                "of policy": score["policy"][:SHORT],
                "trained on it": score["how"],
                "iteration": str(score["iteration"]),
                "run": score["run"],
                "held-out": f"{score['greedy_success']:.3f}",
            }
            for score in scores[:limit]
        ],
        left=("score", "of policy", "trained on it", "run"),
    )
    _print_things(reach.things, runs, limit)


_LONGEST = 300
"""Most characters of a message."""
_LINE = 100
_OF_ORIGINS = ("stage", "role", "task_id", "iteration", "reward", "success", "feedback", "text", "said")
"""Facts of origins that are printed, each on one line of `_LINE` characters; --json gives all."""


def show_origins(run: str, identifier: str, depth: int, store: str, json: bool) -> None:
    """Print an artifact or a row of a run, and what it came from in at most `depth` steps."""
    runs = RunStore(store)
    opened, artifacts = runs.open(run), ArtifactStore(store)
    found = artifact_or_row(artifacts, opened, identifier)
    reach, facts = lineage.explain(artifacts, opened, found, depth)
    by_artifact = runs_by_artifact(runs)
    if json:
        things = _described(reach, by_artifact)
        print_json({"kind": reach.kind, "id": reach.id, "facts": facts, "things": things})
        return
    print_line(_title(reach))
    for name, value in facts.items():
        if name != "messages" and not (name == "text" and "messages" in facts):
            print_line(f"{name}: {_plain(value)}")
    for message in facts.get("messages", ()):
        print_line(f"[{message['role']}]: {_cut(_content(message))}")
    for thing in reach.things:
        _print_origin(thing)
    if "episode_id" in facts:
        words = ["episodes", "show", facts["episode_id"], "--prompts"]
        print_line(f"The whole episode: {command(words, store)}")


def _print_origin(thing: Reached) -> None:
    """Print what it is to the thing that came from it, and its main facts, further right with each step."""
    indent = "    " * thing.depth
    print_line(f"{indent}{thing.relation} {thing.via[:SHORT]}: {_WORDS[thing.kind][0]} {thing.id}")
    messages = thing.facts.get("messages", ())
    said = [_content(message) for message in messages if message["role"] == "assistant"]
    facts = {**thing.facts, **({"said": said[-1], "text": None} if said else {})}
    for name in _OF_ORIGINS:
        if facts.get(name) not in (None, ""):
            print_line(f"{indent}  {name}: {_cut(' '.join(_plain(facts[name]).split()), _LINE)}")


def _content(message: dict[str, Any]) -> str:
    """The text of a message, or the tools that it calls."""
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    return message.get("content") or (f"calls {', '.join(calls)}" if calls else "")


def _cut(text: str, most: int = _LONGEST) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(number)}" for name, number in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _walk(
    walk: Callable[[ArtifactStore, Run, str, int | None], Reach],
    store_uri: str,
    run: str,
    identifier: str,
    depth: int | None,
) -> tuple[Reach, dict[str, list[str]]]:
    """What a walk from an artifact or row of a run reaches, and the runs of each artifact."""
    runs = RunStore(store_uri)
    opened, artifacts = runs.open(run), ArtifactStore(store_uri)
    found = walk(artifacts, opened, artifact_or_row(artifacts, opened, identifier), depth)
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
                "iteration": "" if (iteration := thing.facts.get("iteration")) is None else str(iteration),
                "how": f"{thing.relation} {thing.via[:SHORT]}",
                "task or runs": str(thing.facts.get("task_id") or ", ".join(runs.get(thing.id, []))),
            }
            for thing in things[:limit]
        ],
        total=len(things),
        left=("what", "id", "how", "task or runs"),
        rest="more, further away",
    )

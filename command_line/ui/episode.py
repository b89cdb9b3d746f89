"""An episode of a run, and the tokens of a trajectory, with all that is stored about them."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import polars as pl
from tokenizers import Tokenizer

from command_line.episodes.rows import REPLAYED, episode_training, find_episode, memory_texts
from command_line.ui.rows import record_files, row_files, sequence_files, training_records
from command_line.ui.sequences import AgentAttempt, agent_attempts
from command_line.ui.serving_pages import ServedEpisode, served_episode
from command_line.ui.stored import RunView, Stored
from erl_pipeline.views.report import episodes
from storage.artifacts.manifest import Manifest
from storage.errors import InputError, PrunedFileError
from storage.memory.entries import MEMORY, scan_deltas
from storage.tables.scored import ALL_REDACTED
from storage.tables.trajectories import scan_trajectories


@dataclass(frozen=True)
class ShownEpisode:
    """A whole episode; `rows` are its trajectories in order, `agents` its attempts if agents play it.
    `solved` is None where it was not scored, `served` where it is not of collected traffic."""

    episode_id: str
    holder: Manifest
    rows: Sequence[Mapping[str, Any]]
    shown: episodes.EpisodeParts
    task: episodes.TaskPicture
    agents: Sequence[AgentAttempt]
    served: ServedEpisode | None
    solved: bool | None


def read_episode(stored: Stored, run: RunView, iteration: int, identifier: str) -> ShownEpisode:
    """An episode of an iteration, of training or of an evaluation.

    Raises InputError where the iteration has no such episode.
    """
    paths = {
        **row_files(stored, run, (iteration, iteration)),
        **row_files(stored, run, (iteration, iteration), held_out=True),
    }
    found, holder = find_episode(paths, identifier)
    rows = episodes.in_order(found)
    training = training_of(stored, run, iteration, rows[0]["episode_id"])
    texts = seen_texts(stored, run, rows)
    return ShownEpisode(
        rows[0]["episode_id"],
        holder,
        rows,
        episodes.episode_parts(rows, texts, episodes.drawing_of(run.config, rows[0]), training),
        episodes.task_picture(json.loads(rows[0]["task_payload"] or "{}")),
        agent_attempts(stored, run, holder, rows, training),
        served_episode(stored, holder, rows),
        _solved([row["success"] for row in rows]),
    )


def _solved(successes: Sequence[bool | None]) -> bool | None:
    if not any(successes) and None in successes:
        return None
    return any(successes)


def training_of(
    stored: Stored, run: RunView, iteration: int, episode_id: str
) -> dict[str, list[dict[str, Any]]]:
    """Like `episode_training` over the artifacts since an iteration, the episode's own, but reads only the
    training records that have rows of the episode."""
    files = stored.kept(run.name, "record files", lambda: record_files(stored, run))
    replays = stored.kept(
        run.name, "replays", lambda: [each for each in run.history if each.kind in REPLAYED]
    )
    near = [files[path] for path in stored.records.holding(files, "episode_id", [episode_id])]
    # Replays of an episode are trained on later, never before.
    read = [record.manifest for record in [*replays, *near] if record.iteration >= iteration]
    return episode_training(stored.artifacts, read, episode_id)


def seen_texts(stored: Stored, run: RunView, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Like `memory_texts`, but reads only the files of the run's memory that added the entries, if they have
    all of them."""
    seen = list(dict.fromkeys(entry for row in rows for entry in row["memory_entry_ids"] or ()))
    if not seen:
        return {}
    files = stored.kept(run.name, "memory files", lambda: memory_files(stored, run))
    near = [
        stored.artifacts.open_found(files[path]).path(path.name)
        for path in stored.entries.holding(files, "entry_id", seen)
    ]
    wanted = pl.col("entry_id").is_in(pl.Series(seen, dtype=pl.String).implode())
    texts = dict(scan_deltas(near).filter(wanted).select("entry_id", "text").collect().iter_rows())
    return texts if len(texts) == len(seen) else memory_texts(stored.artifacts, rows)


def memory_files(stored: Stored, run: RunView) -> dict[Path, Manifest]:
    """The files of entries of a run's memory versions, and the version of each."""
    return {
        path: manifest
        for manifest in stored.manifests(run)
        if manifest.kind == "memory"
        for path in stored.artifacts.open_found(manifest).rows_paths(MEMORY.name)
    }


Measure = Literal["advantage", "logprob", "entropy", "ratio", "mismatch"]
MEASURES: dict[Measure, str] = {
    "advantage": "advantage",
    "logprob": "log-probability",
    "entropy": "entropy",
    "ratio": "ratio",
    "mismatch": "mismatch",
}
_TOKENIZER = "model/tokenizer.json"
_LEVELS = 8


@dataclass(frozen=True)
class Token:
    """A token of the response. `level` is the strength of its colour, from -8 to 8; None for no colour."""

    text: str
    id: int
    sampled: bool
    hint: str
    level: int | None


@dataclass(frozen=True)
class TokenStrip:
    """The response of a trajectory, coloured by a measure; `why_not` says why there are no colours."""

    measure: Measure
    prompt: Sequence[str]
    tokens: Sequence[Token]
    why_not: str
    available: Sequence[Measure]
    least: float | None
    most: float | None


def token_strip(
    stored: Stored, run: RunView, iteration: int, trajectory_id: str, measure: Measure | None
) -> TokenStrip:
    """The tokens of a trajectory. Without a `measure`, the advantage is shown if it is stored, else the
    log-probability.

    Raises InputError for an unknown trajectory, PrunedFileError if retention or `forget-user` has removed its
    tokens.
    """
    row = _row(stored, run, iteration, trajectory_id)
    if row["finish_reason"] in ALL_REDACTED:
        raise PrunedFileError("The tokens of this trajectory were removed when its user was forgotten.")
    if row["response_token_ids"] is None:
        raise PrunedFileError("Retention has removed the tokens of this trajectory.")
    record = _record(stored, run, trajectory_id)
    values = _values(row, record)
    available = [name for name in MEASURES if values.get(name) is not None]
    chosen: Measure = measure or ("advantage" if "advantage" in available else "logprob")
    shown = values.get(chosen)
    texts = _texts(stored, row)
    numbers = [value for value, sampled in zip(shown or (), row["response_mask"], strict=False) if sampled]
    scale = max((abs(value) for value in numbers), default=0.0)
    tokens = [
        Token(
            texts(token),
            token,
            bool(sampled),
            _hint(place, values) if sampled else "of the environment; never trained",
            _level(shown[place], scale, chosen) if shown is not None and sampled else None,
        )
        for place, (token, sampled) in enumerate(
            zip(row["response_token_ids"], row["response_mask"], strict=True)
        )
    ]
    return TokenStrip(
        chosen,
        [texts(token) for token in row["prompt_token_ids"]],
        tokens,
        "" if shown is not None else _why_not(chosen, record),
        available,
        min(numbers, default=None),
        max(numbers, default=None),
    )


def _row(stored: Stored, run: RunView, iteration: int, trajectory_id: str) -> dict[str, Any]:
    columns = (
        "prompt_token_ids",
        "response_token_ids",
        "response_mask",
        "behaviour_logprobs",
        "policy_version",
        "finish_reason",
    )
    for held_out in (False, True):
        files = sequence_files(stored, run, (iteration, iteration), held_out=held_out)
        rows = scan_trajectories(files).filter(pl.col("trajectory_id") == trajectory_id)
        found = rows.select(columns).collect().to_dicts()
        if found:
            return found[0]
    raise InputError(f"iteration {iteration} of run {run.name} has no trajectory {trajectory_id}.")


def _record(stored: Stored, run: RunView, trajectory_id: str) -> dict[str, Any] | None:
    rows = training_records(stored, run, None).filter(pl.col("trajectory_id") == trajectory_id)
    found = rows.select("advantage", "not_trained", "token_logprobs", "token_entropies").collect().to_dicts()
    return found[0] if found else None


def _values(row: dict[str, Any], record: dict[str, Any] | None) -> dict[Measure, list[float] | None]:
    """Each measure's values by token; a measure that is not stored is None or absent."""
    sampled_by = row["behaviour_logprobs"]
    values: dict[Measure, list[float] | None] = {
        "logprob": list(sampled_by) if sampled_by is not None else None
    }
    if record is None or row["response_mask"] is None:
        return values
    if record["advantage"] is not None:
        values["advantage"] = [record["advantage"]] * len(row["response_mask"])
    values["entropy"] = record["token_entropies"]
    trained = record["token_logprobs"]
    if trained is not None and sampled_by is not None:
        differences = [after - before for after, before in zip(trained, sampled_by, strict=True)]
        values["mismatch"] = differences
        values["ratio"] = [math.exp(difference) for difference in differences]
    return values


def _hint(place: int, values: dict[Measure, list[float] | None]) -> str:
    said = [
        f"{title} {of[place]:.4g}" for name, title in MEASURES.items() if (of := values.get(name)) is not None
    ]
    return "\n".join(said)


def _level(value: float, scale: float, measure: Measure) -> int:
    """Strength of the colour: its sign is that of the value, or for a ratio that of its distance from 1."""
    if measure == "ratio":
        # A tenth gives the full colour: clipping begins near it.
        return max(-_LEVELS, min(_LEVELS, round((value - 1.0) * 10 * _LEVELS)))
    if not scale:
        return 0
    if measure == "logprob":
        return -min(_LEVELS, round(-value / scale * _LEVELS))
    return round(value / scale * _LEVELS)


def _why_not(measure: Measure, record: dict[str, Any] | None) -> str:
    if record is None:
        return "No update has taken this row yet, or it is of an evaluation."
    if record["not_trained"] is not None:
        return f"This row was not trained: {record['not_trained'].replace('_', ' ')}."
    return f"The {MEASURES[measure]} of tokens was not stored; `update.record_tokens: true` keeps it."


def _texts(stored: Stored, row: dict[str, Any]) -> Callable[[int], str]:
    """Gives the texts of token ids, or the ids themselves if there is no tokenizer."""
    manifest = stored.artifacts.find(row["policy_version"]) if row["policy_version"] else None
    if manifest is None or not any(entry.path == _TOKENIZER for entry in manifest.files):
        return lambda token: f"#{token}"
    tokenizer = _tokenizer(str(stored.artifacts.open_file(manifest, _TOKENIZER)))

    def text(token: int) -> str:
        found = tokenizer.id_to_token(token)
        # Byte-level vocabularies write a space as Ġ and a line break as Ċ, others a space as ▁.
        return f"#{token}" if found is None else found.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "⏎\n")

    return text


@lru_cache(maxsize=8)
def _tokenizer(path: str) -> Tokenizer:
    return Tokenizer.from_file(path)

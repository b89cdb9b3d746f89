"""What the ranks are told to do, and what they answer, as files: sequences, settings and numbers, no code."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field, TypeAdapter
from safetensors import safe_open
from safetensors.numpy import save_file

from erl_pipeline.config.objective import ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.self_distillation import DistillationObjective
from erl_pipeline.policies.checkpoint_files import FILE_BYTES
from erl_pipeline.policies.checkpoints import StoredPolicy
from erl_pipeline.trainers.interface import DEFAULT_PASSES, Passes
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence

MetricsT = TypeVar("MetricsT", UpdateMetrics, FineTuneMetrics)

SCORES = "scores"
_ROWS, _TAUGHT = "rows", "taught"


@dataclass(frozen=True)
class Begin:
    """Load a policy, and its optimizer's state from the folder `checkpoint`; what was loaded before is
    dropped."""

    stored: StoredPolicy
    checkpoint: Path
    optimizer: OptimizerConfig
    passes: Passes = DEFAULT_PASSES
    do: Literal["begin"] = "begin"


@dataclass(frozen=True)
class Reinforce:
    """`Reinforcement` without its sequences."""

    objective: ObjectiveConfig
    update: UpdateConfig
    seed: int
    reference: StoredPolicy | Literal["own_base"] | None
    replay: ReplayLoss | None
    distillation: DistillationObjective | None = None
    do: Literal["reinforce"] = "reinforce"


@dataclass(frozen=True)
class FineTune:
    """`SupervisedTraining` without its sequences; `rates`: the learning rate of each step; None where all
    steps have that of the settings."""

    settings: FineTuneConfig
    seed: int
    rates: tuple[float, ...] | None
    do: Literal["fine_tune"] = "fine_tune"


@dataclass(frozen=True)
class Score:
    """Log-probabilities or entropies of the sequences, under the current policy."""

    what: Literal["logprobs", "entropies"]
    microbatch_tokens: int
    do: Literal["score"] = "score"


@dataclass(frozen=True)
class ScoreTokens:
    """`Trainer.token_scores` of the sequences."""

    microbatch_tokens: int
    top_k: int
    policy: StoredPolicy | Literal["own_base"] | None
    do: Literal["score_tokens"] = "score_tokens"


@dataclass(frozen=True)
class Save:
    """Write a checkpoint into a folder, with the optimizer's state or without. `file_bytes`: the most bytes
    of tensors in a file."""

    folder: Path
    state: bool = True
    file_bytes: int = FILE_BYTES
    do: Literal["save"] = "save"


@dataclass(frozen=True)
class BeginState:
    """Begin to write the optimizer's state into a folder, beside the orders that follow; the answer has the
    sizes of its files. `file_bytes`: as in `Save`."""

    folder: Path
    file_bytes: int = FILE_BYTES
    do: Literal["begin_state"] = "begin_state"


@dataclass(frozen=True)
class Sleep:
    """Leave the device to others: what is held there goes to host memory, until the next order needs it."""

    do: Literal["sleep"] = "sleep"


Work = Annotated[
    Begin | Reinforce | FineTune | Score | ScoreTokens | Save | BeginState | Sleep,
    Field(discriminator="do"),
]
"""What the ranks can do. Those that train or score also get a file of sequences."""

WORK: TypeAdapter[Work] = TypeAdapter(Work)


def order_file(folder: Path, number: int) -> Path:
    """The file with the work of an order, as JSON."""
    return folder / f"{number}.json"


def sequences_file(folder: Path, number: int) -> Path:
    """The file with the sequences of an order."""
    return folder / f"{number}.safetensors"


def answer_file(folder: Path, number: int) -> Path:
    """The file that rank 0 writes for an order."""
    return folder / f"{number}.answer"


def write_sequences(path: Path, sequences: Sequence[TrainingSequence]) -> None:
    """Write sequences into a file; `read_sequences` gives equal ones."""
    columns: dict[str, tuple[np.dtype[Any], list[Sequence[float]]]] = {
        "prompt_token_ids": (np.dtype("int64"), [row.prompt_token_ids for row in sequences]),
        "response_token_ids": (np.dtype("int64"), [row.response_token_ids for row in sequences]),
        "response_mask": (np.dtype("int8"), [row.response_mask for row in sequences]),
        "behaviour_logprobs": (np.dtype("float64"), [row.behaviour_logprobs for row in sequences]),
        "token_advantages": (np.dtype("float64"), [row.token_advantages for row in sequences]),
        "apart": (np.dtype("float64"), [row.apart for row in sequences]),
        "numbers": (
            np.dtype("float64"),
            [(row.advantage, row.weight, row.temperature) for row in sequences],
        ),
    }
    names = json.dumps([[row.trajectory_id, row.role] for row in sequences])
    taught = [number for number, row in enumerate(sequences) if row.teacher is not None]
    columns |= _score_columns([row.teacher for row in sequences if row.teacher is not None])
    write_lists(path, columns, {_ROWS: names, _TAUGHT: json.dumps(taught)})


def read_sequences(path: Path) -> list[TrainingSequence]:
    lists, notes = read_lists(path)
    teachers = dict(zip(json.loads(notes[_TAUGHT]), _scores(lists), strict=True))
    found = []
    for number, (trajectory_id, role) in enumerate(json.loads(notes[_ROWS])):
        advantage, weight, temperature = lists["numbers"][number].tolist()
        found.append(
            TrainingSequence(
                trajectory_id=trajectory_id,
                role=role,
                prompt_token_ids=tuple(lists["prompt_token_ids"][number].tolist()),
                response_token_ids=tuple(lists["response_token_ids"][number].tolist()),
                response_mask=tuple(lists["response_mask"][number].tolist()),
                behaviour_logprobs=tuple(lists["behaviour_logprobs"][number].tolist()),
                advantage=advantage,
                weight=weight,
                temperature=temperature,
                token_advantages=tuple(lists["token_advantages"][number].tolist()),
                teacher=teachers.get(number),
                apart=tuple(lists["apart"][number].tolist()),
            )
        )
    return found


def _score_columns(scores: Sequence[TokenScores]) -> dict[str, tuple[np.dtype[Any], list[Any]]]:
    """The columns of scores, one row for each sequence that has them."""
    names = [each.name for each in fields(TokenScores)]
    return {
        name: (
            np.dtype("int32" if name == "ids" else "float32"),
            [getattr(each, name).ravel() for each in scores],
        )
        for name in names
    }


def _scores(lists: dict[str, list[np.ndarray]]) -> list[TokenScores]:
    """The scores that `_score_columns` has made columns of."""
    rows = zip(*(lists[each.name] for each in fields(TokenScores)), strict=True)
    return [
        TokenScores(logprobs, entropies, ids.reshape(tokens, -1), chosen.reshape(tokens, -1), tail)
        for logprobs, entropies, ids, chosen, tail in rows
        if (tokens := len(logprobs))
    ]


def write_scores(path: Path, scores: Sequence[TokenScores]) -> None:
    """Write scores into a file, each of one token at least; `read_scores` gives equal ones."""
    write_lists(path, _score_columns(scores))


def read_scores(path: Path) -> list[TokenScores]:
    return _scores(read_lists(path)[0])


def write_lists(
    path: Path, columns: dict[str, tuple[np.dtype[Any], list[Any]]], notes: dict[str, str] | None = None
) -> None:
    """Write columns whose rows are lists of numbers, each with the type of its numbers."""
    tensors = {}
    for name, (kind, rows) in columns.items():
        tensors[name] = np.concatenate([np.asarray(row, dtype=kind) for row in rows] or [np.zeros(0, kind)])
        tensors[f"{name}.ends"] = np.fromiter(accumulate(map(len, rows)), dtype=np.int64)
    save_file(tensors, path, metadata=notes)


def read_lists(path: Path) -> tuple[dict[str, list[np.ndarray]], dict[str, str]]:
    """The rows of each column that `write_lists` has written, and its notes."""
    with safe_open(path, framework="numpy") as file:
        names = [name for name in file.keys() if not name.endswith(".ends")]  # noqa: SIM118
        lists = {}
        for name in names:
            ends = file.get_tensor(f"{name}.ends")
            lists[name] = np.split(file.get_tensor(name), ends[:-1]) if len(ends) else []
        return lists, file.metadata() or {}


def write_sizes(path: Path, sizes: Mapping[str, int]) -> None:
    """Write the sizes of files, in bytes, by their names."""
    path.write_text(json.dumps(dict(sizes)), encoding="utf-8")


def read_sizes(path: Path) -> dict[str, int]:
    return TypeAdapter(dict[str, int]).validate_json(path.read_bytes())


def write_metrics(path: Path, metrics: UpdateMetrics | FineTuneMetrics) -> None:
    """Write metrics as JSON, with NaN and infinities as Python writes them."""
    path.write_text(json.dumps(asdict(metrics)), encoding="utf-8")


def read_metrics(kind: type[MetricsT], path: Path) -> MetricsT:
    return TypeAdapter(kind).validate_python(json.loads(path.read_text(encoding="utf-8")))

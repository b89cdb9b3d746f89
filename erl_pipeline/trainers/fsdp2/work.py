"""What the ranks are told to do, and what they answer, as files: sequences, settings and numbers, no code."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter

from erl_pipeline.config.objective import ObjectiveConfig, ReplayLoss
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.policies.checkpoints import StoredPolicy
from erl_pipeline.trainers.interface import DEFAULT_PASSES, Passes
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from erl_pipeline.trainers.sequences import TrainingSequence

MetricsT = TypeVar("MetricsT", UpdateMetrics, FineTuneMetrics)


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
class Save:
    """Write a checkpoint into a folder, with the optimizer's state or without."""

    folder: Path
    state: bool = True
    do: Literal["save"] = "save"


Work = Annotated[Begin | Reinforce | FineTune | Score | Save, Field(discriminator="do")]
"""What the ranks can do. Those that train or score also get a file of sequences."""

WORK: TypeAdapter[Work] = TypeAdapter(Work)


def order_file(folder: Path, number: int) -> Path:
    """The file with the work of an order, as JSON."""
    return folder / f"{number}.json"


def sequences_file(folder: Path, number: int) -> Path:
    """The file with the sequences of an order."""
    return folder / f"{number}.sequences"


def answer_file(folder: Path, number: int) -> Path:
    """The file that rank 0 writes for an order."""
    return folder / f"{number}.answer"


def write_sequences(path: Path, sequences: Sequence[TrainingSequence]) -> None:
    """Write sequences as JSON; `read_sequences` gives equal ones."""
    names = [each.name for each in fields(TrainingSequence)]
    rows = [{name: getattr(sequence, name) for name in names} for sequence in sequences]
    path.write_text(json.dumps(rows), encoding="utf-8")


def read_sequences(path: Path) -> list[TrainingSequence]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    return TypeAdapter(list[TrainingSequence]).validate_python(rows)


def write_metrics(path: Path, metrics: UpdateMetrics | FineTuneMetrics) -> None:
    """Write metrics as JSON, with NaN and infinities as Python writes them."""
    path.write_text(json.dumps(asdict(metrics)), encoding="utf-8")


def read_metrics(kind: type[MetricsT], path: Path) -> MetricsT:
    return TypeAdapter(kind).validate_python(json.loads(path.read_text(encoding="utf-8")))

"""A policy and its optimizer in this process."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from erl_pipeline.engines.probe import save_probe
from erl_pipeline.policies.checkpoints import MODEL, StoredPolicy
from erl_pipeline.policies.hardware import adds_in_fixed_order
from erl_pipeline.policies.pretrained import LoadedPolicy, save_policy
from erl_pipeline.trainers.interface import (
    DEFAULT_PASSES,
    OnStep,
    Passes,
    Reinforcement,
    SupervisedTraining,
    TrainingStart,
)
from erl_pipeline.trainers.local import optimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.local.self_distillation import token_scores
from erl_pipeline.trainers.local.supervised import fine_tune_supervised
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence
from storage.artifacts.late_files import LateFiles


class LocalTrainer:
    """Trains the policy that `start.load` gives; see `erl_pipeline.trainers.interface.Trainer`."""

    def __init__(self, start: TrainingStart, passes: Passes = DEFAULT_PASSES) -> None:
        self._start = start
        self._passes = passes

    @cached_property
    def _policy(self) -> LoadedPolicy:
        return self._start.load()

    @cached_property
    def _optimizer(self) -> optimizer.PolicyOptimizer:
        return optimizer.load_optimizer(self._policy.model, self._start.optimizer, self._start.checkpoint)

    @property
    def _learner(self) -> Learner:
        return Learner(self._policy.model, self._optimizer, passes=self._passes)

    @property
    def determinism(self) -> Literal["bytes", "approximate"]:
        return "bytes" if adds_in_fixed_order(self._policy.model.device) else "approximate"

    def reinforce(self, work: Reinforcement, on_step: OnStep | None = None) -> UpdateMetrics:
        stored = work.reference
        if stored is None:
            return reinforce(self._learner, work, on_step=on_step)
        load = (lambda: self._policy.model) if stored == "own_base" else (lambda: stored.load().model)
        return reinforce(self._learner, work, load, on_step)

    def fine_tune_supervised(
        self, work: SupervisedTraining, on_step: OnStep | None = None
    ) -> FineTuneMetrics:
        return fine_tune_supervised(self._learner, work, on_step)

    def logprobs(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        return self._scores(sequences, microbatch_tokens)[0]

    def entropies(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        return self._scores(sequences, microbatch_tokens)[1]

    def _scores(
        self, sequences: Sequence[TrainingSequence], microbatch_tokens: int
    ) -> list[list[np.ndarray]]:
        with self._learner.ready(gradient_checkpointing=False) as forward:
            found = forward.sequence_scores(sequences, microbatch_tokens)
        return [[values.cpu().numpy() for values in of_each] for of_each in found]

    def token_scores(
        self,
        sequences: Sequence[TrainingSequence],
        microbatch_tokens: int,
        top_k: int = 0,
        policy: StoredPolicy | Literal["own_base"] | None = None,
    ) -> list[TokenScores]:
        loaded = policy.load() if isinstance(policy, StoredPolicy) else self._policy
        own_base = policy == "own_base"
        return token_scores(self._learner, loaded.model, sequences, microbatch_tokens, top_k, own_base)

    def save(self, folder: Path, *, state: bool = True) -> None:
        save_policy(self._policy, folder / MODEL)
        save_probe(self._policy, folder)
        if state:
            optimizer.save_optimizer(self._optimizer, folder)
        else:
            optimizer.write_progress(self._optimizer, folder)

    def begin_state(self, folder: Path, late_files: LateFiles) -> dict[str, int]:
        files = optimizer.files_of_state(self._optimizer)
        late_files.begin({folder / name: file.parts for name, file in files.items()})
        return {name: file.size for name, file in files.items()}

    def trained_policy(self) -> LoadedPolicy:
        return self._policy

    def lasts(self) -> bool:
        return True

    def close(self) -> None:
        pass

"""A policy and its optimizer in other processes, as seen from the process of the stage."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from erl_pipeline.policies import checkpoint_files
from erl_pipeline.policies.checkpoints import StoredPolicy
from erl_pipeline.policies.hardware import adds_in_fixed_order, training_device
from erl_pipeline.trainers import interface
from erl_pipeline.trainers.fsdp2 import work as orders
from erl_pipeline.trainers.fsdp2.devices import require_devices
from erl_pipeline.trainers.fsdp2.kept_ranks import KeptRanks
from erl_pipeline.trainers.fsdp2.launcher import TIMEOUT_SECONDS
from erl_pipeline.trainers.fsdp2.nodes import NodesConfig
from erl_pipeline.trainers.fsdp2.rank_group import RankGroup
from erl_pipeline.trainers.metrics import FineTuneMetrics, UpdateMetrics
from erl_pipeline.trainers.sequences import TokenScores, TrainingSequence
from storage.artifacts.late_files import LateFiles


def _absolute(
    policy: StoredPolicy | Literal["own_base"] | None,
) -> StoredPolicy | Literal["own_base"] | None:
    return policy.absolute() if isinstance(policy, StoredPolicy) else policy


class Fsdp2Trainer:
    """Trains in `processes` processes, which load the checkpoint with the first work; see
    `erl_pipeline.trainers.interface.Trainer`. They are those that the worker keeps, or else end with `close`.

    Where one of them ends or fails, the call that it was working on raises `PipelineError`, and the trainer
    cannot be used any more. `nodes` is where the nodes meet that share the processes; None for this machine
    only. `group` are processes that already run, and that the caller ends.

    Raises `ConfigError` where this machine has fewer devices than processes.
    """

    def __init__(
        self,
        processes: int,
        start: interface.TrainingStart,
        group: RankGroup | None = None,
        nodes: NodesConfig | None = None,
        passes: interface.Passes = interface.DEFAULT_PASSES,
        timeout_seconds: float = TIMEOUT_SECONDS,
        sleeps: bool = False,
    ) -> None:
        if start.context is None:
            raise ValueError("trainer fsdp2 needs the context that stages give it")
        require_devices(processes, 1 if nodes is None else nodes.count)
        self._start = start
        self._context = start.context
        self._processes = processes
        self._nodes = nodes
        self._passes = passes
        self._timeout_seconds = timeout_seconds
        self._sleeps = sleeps
        self._group = group
        self._owns_group = group is None
        self._begun = False
        self._kept: KeptRanks | None = None
        # A runner that has found nodes lends them to one stage, and may have several workers that train.
        if start.context.keep is not None and (nodes is None or start.context.other_nodes is None):
            self._kept = start.context.keep(interface.KEPT_PROCESSES, KeptRanks)

    @property
    def determinism(self) -> Literal["bytes", "approximate"]:
        return "bytes" if adds_in_fixed_order(training_device()) else "approximate"

    def reinforce(
        self, work: interface.Reinforcement, on_step: interface.OnStep | None = None
    ) -> UpdateMetrics:
        told = orders.Reinforce(
            work.objective, work.update, work.seed, _absolute(work.reference), work.replay, work.distillation
        )
        return orders.read_metrics(UpdateMetrics, self._do(told, work.sequences, on_step))

    def fine_tune_supervised(
        self, work: interface.SupervisedTraining, on_step: interface.OnStep | None = None
    ) -> FineTuneMetrics:
        rates = None
        if work.rate is not None:
            rows = sum(sequence.trained_tokens > 0 for sequence in work.sequences)
            rates = tuple(work.rate(step + 1) for step in range(work.settings.optimizer_steps(rows)))
        told = orders.FineTune(work.settings, work.seed, rates)
        return orders.read_metrics(FineTuneMetrics, self._do(told, work.sequences, on_step))

    def logprobs(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        return self._scores(orders.Score("logprobs", microbatch_tokens), sequences)

    def entropies(self, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> list[np.ndarray]:
        return self._scores(orders.Score("entropies", microbatch_tokens), sequences)

    def token_scores(
        self,
        sequences: Sequence[TrainingSequence],
        microbatch_tokens: int,
        top_k: int = 0,
        policy: StoredPolicy | Literal["own_base"] | None = None,
    ) -> list[TokenScores]:
        told = orders.ScoreTokens(microbatch_tokens, top_k, _absolute(policy))
        return orders.read_scores(self._do(told, sequences))

    def save(self, folder: Path, *, state: bool = True) -> None:
        self._do(orders.Save(folder.absolute(), state, checkpoint_files.FILE_BYTES))

    def begin_state(self, folder: Path, late_files: LateFiles) -> dict[str, int]:
        return orders.read_sizes(self._do(orders.BeginState(folder.absolute(), checkpoint_files.FILE_BYTES)))

    def trained_policy(self) -> None:
        return None

    def lasts(self) -> bool:
        return self._kept is not None and (self._group is None or self._group.alive())

    def close(self) -> None:
        if self._group is None or not self._owns_group:
            return
        if self._kept is None:
            self._group.finish()
        else:
            self._kept.give_back(self._group)

    def _scores(self, told: orders.Score, sequences: Sequence[TrainingSequence]) -> list[np.ndarray]:
        return orders.read_lists(self._do(told, sequences))[0][orders.SCORES]

    def _do(
        self,
        work: orders.Work,
        sequences: Sequence[TrainingSequence] | None = None,
        on_step: interface.OnStep | None = None,
    ) -> Path:
        if self._group is None:
            self._group = self._lent_group()
        if self._kept is not None:
            self._kept.leave_devices_to(self._group)
        if not self._begun:
            self._begun = True
            self._group.do(
                orders.Begin(
                    self._context.stored.absolute(),
                    self._start.checkpoint.absolute(),
                    self._start.optimizer,
                    self._passes,
                )
            )
        return self._group.do(work, sequences, on_step)

    def _lent_group(self) -> RankGroup:
        context = self._context
        # Also over several machines the number of all threads together, since bytes depend on it.
        threads = max(1, context.threads // self._processes)

        def start() -> RankGroup:
            return RankGroup(
                self._processes,
                threads,
                context.scratch,
                self._with_folders(),
                timeout_seconds=self._timeout_seconds,
                deterministic=context.deterministic,
                sleeps=self._sleeps,
            )

        if self._kept is None:
            return start()
        like = (
            self._processes,
            threads,
            self._nodes,
            self._timeout_seconds,
            context.deterministic,
            self._sleeps,
        )
        return self._kept.lend(like, start)

    def _with_folders(self) -> NodesConfig | None:
        """The other nodes, with what this training needs of them."""
        if self._nodes is None:
            return None
        parts = self._context.stored.absolute().parts
        folders = [self._start.checkpoint.absolute(), parts.base_folder]
        if parts.adapter_folder is not None:
            folders.append(parts.adapter_folder)
        context = self._context
        return replace(
            self._nodes,
            folders=folders,
            raise_if_stopped=context.raise_if_stopped,
            tell_waiting=context.tell_waiting,
        )

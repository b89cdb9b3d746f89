"""Warnings about a run that trains without an error but does not learn: what they are, and when they are
recorded."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from erl_pipeline.config.pipeline import WarningKind, WarningsConfig
from erl_pipeline.episodes.roles import NEVER_TRAINED
from erl_pipeline.evaluation.history import stored_records
from erl_pipeline.evaluation.iterations import StageNumbers
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.stages.training.advantages import GROUPS, ZERO_ADVANTAGE_GROUPS
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, DamagedArtifact
from storage.runs.documents import RunWarning, read_warnings, record_warning
from storage.runs.ledger import LedgerEntry
from storage.tables.scored import FAILED, was_scored
from storage.tables.sequences import attempt_files
from storage.tables.trajectories import scan_trajectories

ROWS = ("role", "finish_reason", "truncated")
"""The columns of rollouts that warnings look at."""

_STEPS = "optimizer_steps"


@dataclass(frozen=True)
class FoundWarning:
    """Something to warn of: what was found, in a sentence, and the setting to look at."""

    kind: WarningKind
    text: str
    setting: str


def settings_warnings(settings: WarningsConfig, group_size: int) -> Iterator[FoundWarning]:
    """Warnings from the settings, before anything runs."""
    if settings.no_advantage is not None and group_size == 1:
        yield FoundWarning(
            "group_size",
            "Each group has one trajectory, so no trajectory has an advantage and reinforcement learning "
            "changes nothing.",
            "rollouts.group_size",
        )


def update_warnings(
    settings: WarningsConfig, iterations: Sequence[Sequence[StageNumbers]]
) -> Iterator[FoundWarning]:
    """Warnings from the updates of the newest iterations.

    Args:
        iterations: the stages of the newest iterations, the oldest first. In the last one everything is
            checked; in the earlier ones, only whether there was an advantage.
    """
    newest = [stage for stage in iterations[-1] if _is_update(stage)]
    wanted = settings.no_advantage
    for stage in newest:
        if wanted is not None and _without_advantage_in_a_row(stage.stage, iterations) >= wanted:
            row = "this iteration" if wanted == 1 else f"{wanted} iterations in a row"
            yield FoundWarning(
                "no_advantage",
                f"In {row} no trajectory of {stage.stage} had an advantage: all rewards of each "
                "group were equal, so nothing is learned by reinforcement. Tasks are too hard, too easy, or "
                "the reward cannot tell attempts apart.",
                "rollouts.group_size, rollouts.selection and the environment's reward",
            )
        numbers = _numbers(stage)
        if not numbers[_STEPS]:
            continue
        entropy, mismatch = numbers["entropy"], numbers["mismatch_mean"]
        if settings.entropy is not None and entropy < settings.entropy:
            yield FoundWarning(
                "entropy",
                f"The entropy of the policy has fallen to {entropy:.3g} nats a token in {stage.stage}: it "
                "hardly explores any more.",
                "sampling.temperature, objective.entropy_coefficient and optimizer.learning_rate",
            )
        if settings.mismatch is not None and mismatch > settings.mismatch:
            yield FoundWarning(
                "mismatch",
                f"Sampler and trainer differ by {mismatch:.3g} nats a token on average in {stage.stage}: "
                "what is trained is not quite the policy that sampled.",
                "objective.correction and the dtype of engine and policy",
            )


def rollout_warnings(settings: WarningsConfig, rows: pl.DataFrame) -> Iterator[FoundWarning]:
    """Warnings from an iteration's trajectories; `rows` has the columns `ROWS`."""
    attempted = rows.filter(~pl.col("role").is_in(sorted(NEVER_TRAINED)))
    trained = attempted.filter(was_scored())
    failed = attempted.filter(pl.col("finish_reason").is_in(FAILED)).height
    if settings.not_scored is not None and failed and failed >= settings.not_scored * attempted.height:
        yield FoundWarning(
            "not_scored",
            f"{_share_text(failed / attempted.height)} of {attempted.height:,} trajectories were not scored, "
            "because the environment or its scorer failed, so nothing is learned from them.",
            "the environment, its servers and rollouts.step_seconds; `erl-pipeline episodes list RUN "
            "--outcome not_scored` names the episodes",
        )
    if settings.ill_formed is not None:
        ill_formed = pl.col("finish_reason") == "ill_formed"
        shares = trained.group_by("role").agg(share=ill_formed.mean(), count=pl.len()).sort("role")
        for role, share, count in shares.rows():
            if share >= settings.ill_formed:
                yield FoundWarning(
                    "ill_formed",
                    f"{_share_text(share)} of {count:,} texts of role {role} are ill-formed, so nothing in "
                    "them is used.",
                    "the prompt and the limit of tokens that the method has for that role",
                )
    if settings.cut_off is not None and len(trained):
        share = sum(trained["truncated"]) / len(trained)
        if share >= settings.cut_off:
            yield FoundWarning(
                "cut_off",
                f"{_share_text(share)} of {len(trained):,} trajectories were cut off at the limit of tokens "
                "before they ended.",
                "sampling.max_new_tokens",
            )


def _share_text(share: float) -> str:
    return "All" if share == 1.0 else f"{100 * share:.0f} %"


def _is_update(stage: StageNumbers) -> bool:
    return stage.kind == "checkpoint" and any(name.startswith(f"{GROUPS}_") for name in _numbers(stage))


def _numbers(stage: StageNumbers) -> Mapping[str, float]:
    return {**stage.counters, **stage.metrics}


def _without_advantage_in_a_row(name: str, iterations: Sequence[Sequence[StageNumbers]]) -> int:
    """How many of the newest iterations in a row had an update of this name without any advantage."""
    found = 0
    for stages in reversed(iterations):
        numbers = [_numbers(stage) for stage in stages if stage.stage == name]
        if not numbers or not all(map(_is_without_advantage, numbers)):
            break
        found += 1
    return found


def _is_without_advantage(counters: Mapping[str, float]) -> bool:
    groups = _sum_over_roles(counters, GROUPS)
    return groups > 0 and groups == _sum_over_roles(counters, ZERO_ADVANTAGE_GROUPS)


def _sum_over_roles(counters: Mapping[str, float], name: str) -> float:
    return sum(count for counter, count in counters.items() if counter.startswith(f"{name}_"))


class WarningWatch:
    """Looks at each iteration when it is complete, and gives each kind of warning once."""

    def __init__(self, opened: OpenRun, notify: Iterable[Callable[[RunWarning], None]] = ()) -> None:
        self._opened = opened
        self._settings = opened.config.warnings
        self._notify = list(notify)
        self._said = {warning.kind: warning for warning in read_warnings(opened.store.uri, opened.run.name)}

    def before_run(self) -> None:
        """Look at the configuration. Raises ConfigError if it, or an earlier start, gave a warning that stops
        the run."""
        for warning in self._said.values():
            self._stop_on(warning)
        self._say(0, settings_warnings(self._settings, self._opened.config.rollouts.group_size))

    def after_iteration(self, iteration: int) -> None:
        """Look at an iteration that is complete. Raises ConfigError for a warning that stops the run."""
        if not iteration:
            return
        oldest = iteration - (self._settings.no_advantage or 1) + 1
        entries = [entry for entry in self._opened.stages() if oldest <= (entry.iteration or 0) <= iteration]
        by_iteration = [
            stored_records(self._opened.store, [entry for entry in entries if entry.iteration == number])
            for number in range(max(1, oldest), iteration + 1)
        ]
        self._say(iteration, update_warnings(self._settings, by_iteration))
        rows = _rows(self._opened.store, [entry for entry in entries if entry.iteration == iteration])
        if rows is not None:
            self._say(iteration, rollout_warnings(self._settings, rows))

    def _say(self, iteration: int, found: Iterable[FoundWarning]) -> None:
        new: list[RunWarning] = []
        for each in found:
            if each.kind in self._said:
                continue
            warning = RunWarning(
                kind=each.kind,
                iteration=iteration,
                text=each.text,
                setting=each.setting,
                said_at=datetime.now(UTC),
            )
            record_warning(self._opened.store.uri, self._opened.run.name, warning)
            self._said[each.kind] = warning
            new.append(warning)
            self._opened.listener.warn(warning.sentence)
            for notify in self._notify:
                notify(warning)
        for warning in new:
            self._stop_on(warning)

    def _stop_on(self, warning: RunWarning) -> None:
        if warning.kind in self._settings.stop_on:
            raise ConfigError(
                f"warnings.stop_on: {warning.kind} stops the run. {warning.sentence} What was committed is "
                f"kept; take {warning.kind} out of warnings.stop_on to go on."
            )


def _rows(store: ArtifactStore, entries: Iterable[LedgerEntry]) -> pl.DataFrame | None:
    """The columns that warnings read of an iteration's trajectories; None if it has no trajectories."""
    files: list[Path] = []
    for entry in entries:
        # A damaged artifact is made again, and is looked at then.
        with suppress(DamagedArtifact):
            if entry.kind == "trajectories":
                files += attempt_files([store.open(entry.artifact_id)])
    return scan_trajectories(files).select(ROWS).collect() if files else None

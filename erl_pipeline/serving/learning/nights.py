"""A night: what a served policy learns from its traffic, in a run of its own.

A night trains on sealed batches, from the checkpoint that the alias `production` means, in the order
collect, train, evaluate, judge. Each step is committed, so that after a kill the same call goes on to the
same ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from erl_pipeline.config.loading import change_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.runner import InProcessConfig
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.driver import OpenRun
from erl_pipeline.runs.origins import begin_offline, offline_settings, require_offline
from erl_pipeline.runs.state import current_checkpoint
from erl_pipeline.runs.train import train
from erl_pipeline.serving.learning.collect import Collected, SealedBatch, collect, sealed_batches
from erl_pipeline.serving.learning.forgotten import last_forgotten_of, learned_from_forgotten
from erl_pipeline.serving.learning.gate import judge
from erl_pipeline.serving.learning.promotion import CANDIDATE, PRODUCTION, require_alias
from erl_pipeline.serving.learning.remembering import remember
from erl_pipeline.serving.settings import ServingSettings
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError
from storage.runs.documents import OfflineOrigin, read_origin
from storage.runs.run import RunStore
from storage.serving.aliases import (
    AliasChange,
    Verdict,
    change_alias,
    current_aliases,
    record_verdict,
    verdicts,
)
from storage.serving.collected import traffic_run
from storage.upkeep.retention import retain_chain


@dataclass(frozen=True)
class Night:
    """A run that trains on batches of traffic. `config` is its configuration, `rated` the number of episodes
    that it learns from. `too_old` is that of rated ones that waited, and that nothing learns from."""

    served: str
    config: RunConfig
    origin: OfflineOrigin
    rated: int
    too_old: int = 0

    @property
    def name(self) -> str:
        return self.config.name


@dataclass(frozen=True)
class NextNight:
    """What is to be done: a `night`, or nothing, for a `reason`. `collected` is what was found in the log;
    None where a night that was begun before goes on first."""

    night: Night | None
    reason: str
    collected: Collected | None


def next_night(store_uri: str, run: str, settings: ServingSettings, now: datetime) -> NextNight:
    """Collect what is settled, and give the night that is due. A night that has no verdict yet goes on first.

    A night trains on the new batches and, before them, on earlier ones that production has not learned from,
    since their nights were refused or are candidates: on the last `learn.max_age` batches at most, since what
    was answered before them would be too old. Of more waiting ones the oldest are left out. So are earlier
    batches of which a user was forgotten, and those before: their updates are in the store, and would be
    taken as they are, with what they learned from that user.

    With fewer rated episodes than `learn.min_episodes` that no night has trained on, nothing is sealed, and
    they wait for more.

    Raises:
        ConfigError: the run cannot learn with these settings; nothing is sealed then.
        InputError: the alias `production` means nothing.
        RunBusy: another process collects.
    """
    config = run_config(RunStore(store_uri).open(run))
    production = require_alias(store_uri, run, PRODUCTION)
    origins = _origins_of_nights(store_uri, run)
    judged = {verdict.run for verdict in verdicts(store_uri, run)}
    batches = sealed_batches(store_uri, run)
    for name, origin in origins.items():
        if name not in judged:
            trains = [b for b in batches if origin.first_iteration <= b.iteration <= origin.last_iteration]
            begun = Night(run, run_config(RunStore(store_uri).open(name)), origin, _rated(trains))
            return NextNight(begun, "", None)
    last_night = max((origin.last_iteration for origin in origins.values()), default=0)
    waiting = [batch for batch in batches if batch.iteration > last_night]
    # What is sealed now is the last batch, so one less of those that wait is young enough.
    young = [batch for batch in waiting if batch.iteration > len(batches) + 1 - settings.learn.max_age]
    wanted = settings.learn.min_episodes - _rated(young)
    _require_learnable(config, settings)
    collected = collect(
        store_uri,
        run,
        settings.episode,
        now,
        at_least=max(wanted, 1),
        corrections=settings.learn.corrections,
    )
    if collected.batch is not None:
        waiting.append(collected.batch)
        batches.append(collected.batch)
    rated = _rated(young if collected.batch is None else [*young, collected.batch])
    if rated < settings.learn.min_episodes:
        found = rated if collected.batch is not None else rated + collected.rated
        reason = f"{found} of {settings.learn.min_episodes} rated episodes (learn.min_episodes) are there"
        return NextNight(None, reason, collected)
    last = waiting[-1].iteration
    learned = origins[production.run].last_iteration if production.run in origins else 0
    forgotten = last_forgotten_of(store_uri, batches, last_night)
    first = max(learned, last - settings.learn.max_age, forgotten) + 1
    origin = OfflineOrigin(
        run=traffic_run(run),
        first_iteration=first,
        last_iteration=last,
        checkpoint_id=production.checkpoint_id,
        evaluates=_has_held_out(config),
    )
    trains = [batch for batch in batches if first <= batch.iteration <= last]
    too_old = [batch for batch in waiting if batch.iteration < first]
    night = Night(run, _night_config(config, origin, settings), origin, _rated(trains), _rated(too_old))
    return NextNight(night, "", collected)


def train_night(opened: OpenRun, night: Night) -> None:
    """Begin the night's run, or go on with it, in this process. Raises as `begin_offline` and `train`."""
    begin_offline(opened, night.origin)
    # Only for this process: the stored configuration keeps its runner, for later continuation.
    opened.config = opened.config.model_copy(update={"runner": InProcessConfig()})
    train(opened, night.config.iterations)


@dataclass(frozen=True)
class Judged:
    """A night's verdict, and the alias that was changed for it; None if none was. `kept` says why not, where
    the gate passed all the same."""

    verdict: Verdict
    change: AliasChange | None
    kept: str = ""


def conclude_night(
    store_uri: str, night: Night, settings: ServingSettings, who: str, *, promote: bool = False
) -> Judged:
    """Judge a trained night, and let an alias mean its checkpoint if it passes: `candidate`, or with
    `promote` `production`. Its reflections become entries of the served run's memory, whatever the verdict.

    No alias is changed where `production` means neither what it meant when the night began, nor the night's
    own checkpoint: somebody has rolled back, or promoted another, and the verdict does not compare with that.
    And none where a user was forgotten from whom the checkpoint had learned.

    Raises RunBusy when another process works on the served run.
    """
    runs = RunStore(store_uri)
    run, served = runs.open(night.name), runs.open(night.served)
    found = current_checkpoint(ArtifactStore(store_uri), run, night.config)
    assert found is not None
    old = night.origin.checkpoint_id
    assert old is not None
    verdict = judge(
        store_uri, night.served, run, found.artifact_id, old, night.config.iterations, settings.gate
    )
    alias = PRODUCTION if promote else CANDIDATE
    change, kept = None, ""
    with served.lock():
        aliases = current_aliases(store_uri, night.served)
        before, production = aliases.get(alias), aliases[PRODUCTION].checkpoint_id
        learned = learned_from_forgotten(store_uri, verdict.checkpoint_id, since=old)
        if verdict.passed and any(learned):
            kept = "it had trained on a batch of which a user was forgotten since"
        elif verdict.passed and production not in (old, verdict.checkpoint_id):
            kept = (
                f"{PRODUCTION} means checkpoint {production[:12]} by now, and the gate has compared with "
                f"{old[:12]}"
            )
        elif verdict.passed and (before is None or before.checkpoint_id != verdict.checkpoint_id):
            change = AliasChange(
                alias=alias,
                checkpoint_id=verdict.checkpoint_id,
                previous=None if before is None else before.checkpoint_id,
                run=night.name,
                who=who,
                reason=verdict.reason,
                gate=verdict.numbers,
                changed=datetime.now(UTC),
            )
            change_alias(store_uri, night.served, change)
        if night.config.served_feedback.reflect is not None:
            remember(ArtifactStore(store_uri), served, run, night.config)
        # Last: a night without a verdict is judged again.
        record_verdict(store_uri, night.served, verdict)
    _retain_nights(store_uri, night)
    return Judged(verdict, change, kept)


def _retain_nights(store_uri: str, night: Night) -> None:
    """Apply the rules of retention over the nights that have a verdict, each of which counts as one
    iteration."""
    rules = night.config.retention.rules()
    if not rules:
        return
    runs, judged = RunStore(store_uri), {verdict.run for verdict in verdicts(store_uri, night.served)}
    chain = [runs.open(name) for name in _origins_of_nights(store_uri, night.served) if name in judged]
    retain_chain(ArtifactStore(store_uri), chain, rules)


def _require_learnable(config: RunConfig, settings: ServingSettings) -> None:
    """Raise ConfigError for settings with which no night can be begun."""
    some = OfflineOrigin(
        run=traffic_run(config.name), first_iteration=1, last_iteration=1, checkpoint_id=None, evaluates=False
    )
    try:
        require_offline(_night_config(config, some, settings))
    except ConfigError as error:
        raise ConfigError(
            "the settings of learning do not fit; a night has learn.reflect and learn.corrections as "
            f"served_feedback.reflect and .corrections, and learn.max_age as pipeline.max_age.\n{error}"
        ) from error


def _night_config(config: RunConfig, origin: OfflineOrigin, settings: ServingSettings) -> RunConfig:
    """The served run's configuration, changed as far as traffic needs: nothing too old, and rewards compared
    with the mean of all others, whose spread is that of people and not of samples of one task."""
    own = [
        *offline_settings(config),
        f"pipeline={{max_age: {settings.learn.max_age}, too_old: drop}}",
        "objective.advantage_normalization=rloo",
        *(["served_feedback.corrections=true"] if settings.learn.corrections else []),
        *([f"served_feedback.reflect={settings.learn.reflect}"] if settings.learn.reflect else []),
    ]
    options = {
        "--name": ("name", night_name(config.name, origin.last_iteration)),
        "--iterations": ("iterations", origin.iterations),
    }
    return change_config(config, own, options)


def night_name(run: str, last: int) -> str:
    """The run of the night whose last batch is that of this iteration."""
    return f"{run}-night-{last:03d}"


def _origins_of_nights(store_uri: str, run: str) -> dict[str, OfflineOrigin]:
    """The nights that were begun, the oldest first."""
    pattern = re.compile(re.escape(run) + r"-night-\d{3,}")
    names = (name for name in RunStore(store_uri).list() if pattern.fullmatch(name))
    origins = {name: read_origin(store_uri, name) for name in names}
    found = {
        name: origin
        for name, origin in origins.items()
        if isinstance(origin, OfflineOrigin) and origin.run == traffic_run(run)
    }
    # Not by their names: those of three digits come after night 1000.
    return dict(sorted(found.items(), key=lambda each: each[1].last_iteration))


def _rated(batches: Sequence[SealedBatch]) -> int:
    return sum(batch.rated for batch in batches)


def _has_held_out(config: RunConfig) -> bool:
    plugin = plugins("environments")[config.environment.type].value
    return bool(plugin.held_out_tasks(config.environment, config.seed, config.evaluation.tasks))

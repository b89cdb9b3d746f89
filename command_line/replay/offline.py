"""`erl-pipeline replay --offline`: trains a new run on the stored rollouts of another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from command_line.replay.new_run import conclude, work_on_new_run
from command_line.replay.stored import own_settings, require_other_name
from command_line.selectors import find_checkpoint
from erl_pipeline.config.loading.load import change_config, load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.config.shown import changed_settings
from erl_pipeline.plan.forecast import own_differences
from erl_pipeline.plan.sources import unread_sources
from erl_pipeline.runs.branch import begin_offline, require_offline
from erl_pipeline.runs.config import run_config
from erl_pipeline.runs.planning import stored_rollouts
from erl_pipeline.runs.run_plans import plan_run
from storage.artifacts.store import ArtifactStore
from storage.errors import ConfigError, InputError
from storage.runs.origin import IMPORTED, OfflineOrigin
from storage.runs.run import Run, RunStore

_EXAMPLES = 3


def replay_offline(
    run: str,
    span: tuple[int, int],
    name: str,
    settings: Sequence[str],
    checkpoint: str | None,
    evaluates: bool,
    config_file: Path | None,
    store: str,
    json: bool,
) -> None:
    """Train on the stored iterations of `span` (first and last) in order, or continue that training.

    Raises ConfigError for changed settings that the stored rollouts depend on, or for an objective without
    importance correction; InputError when `run` lacks one of the iterations.
    """
    stored = RunStore(store).open(run)
    require_other_name(run, name)
    checkpoint_id = None
    if checkpoint is not None:
        checkpoint_id = find_checkpoint(ArtifactStore(store), stored, checkpoint).artifact_id
    origin = OfflineOrigin(
        run=run,
        first_iteration=span[0],
        last_iteration=span[1],
        checkpoint_id=checkpoint_id,
        evaluates=evaluates,
    )
    stored_rollouts(stored, origin)
    base, new = _offline_config(stored, origin.iterations, name, settings, config_file)
    require_offline(new)
    heading = f"Offline: stored rollouts of iterations {span[0]} to {span[1]} of {run}, in order"
    notes = [heading, *(f"  {line}" for line in changed_settings(base, new))]
    work_on_new_run(new, store, notes, partial(begin_offline, origin=origin))
    conclude(new.name, run, store, origin.iterations, json)


def _offline_config(
    stored: Run, iterations: int, name: str, settings: Sequence[str], config_file: Path | None
) -> tuple[RunConfig, RunConfig]:
    """The configuration of the stored run (or of the file), and that of offline training on it.

    The importance correction is switched on and evaluation uses the embedded engine, unless `settings` say
    otherwise.
    """
    own = own_settings(settings)
    imported = IMPORTED in stored.config
    if imported and config_file is None:
        raise InputError(
            f"run {stored.name} has trajectories and no policy of its own; name one with --config CONFIG"
        )
    if not imported and config_file is not None:
        raise InputError(f"run {stored.name} has a configuration of its own; change it with --set")
    base = run_config(stored) if config_file is None else load_config(config_file)
    needed = []
    if not any(key.startswith("engine") for key in own) and base.engine.type != "transformers":
        needed.append("engine={type: transformers}")
    chosen = any(key.startswith(("objective.correction", "objective=")) for key in own)
    if base.objective.correction.type == "bypass" and not chosen:
        needed.append("objective.correction={type: decoupled}")
    options = {"--name": ("name", name), "--iterations": ("iterations", iterations)}
    adapted = change_config(base, needed, options)
    new = change_config(adapted, own, options)
    if not imported:
        _refuse_other_data(adapted, new)
    return base, new


def _refuse_other_data(old: RunConfig, new: RunConfig) -> None:
    """Raise ConfigError for changed settings on which the stored rollouts, or what precedes them, depend."""
    before, after = (plan_run(config, unread_sources(config), iterations=1) for config in (old, new))
    changed = changed_settings(old, new)
    for node in before.nodes:
        if node.iteration is not None and node.stage.output not in ("trajectories", "rollouts"):
            continue
        found = after.by_place.get(node.place)
        reasons = changed if found is None else own_differences(node.recipe, found.recipe, changed)
        if reasons:
            raise ConfigError(
                f"the settings change {node.stage.name}, on which the stored rollouts depend "
                f"({'; '.join(reasons[:_EXAMPLES])}); change only how the policy learns from them"
            )

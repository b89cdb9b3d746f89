"""`erl-pipeline replay --offline`: a new run that trains on what another has stored."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from pathlib import Path

from command_line.evaluate import find_checkpoint
from command_line.replay.new_run import (
    conclude,
    own_settings,
    require_other_name,
    stored_run,
    work_on_new_run,
)
from erl_pipeline.config.differences import changed_settings
from erl_pipeline.config.load import change_config, load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.pipeline.offline import require_correction
from erl_pipeline.pipeline.planning import refuse_earlier_changes
from erl_pipeline.pipeline.run_state import run_config
from erl_pipeline.pipeline.stored_run import StoredRun
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.origin import OfflineOrigin


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
    """Train on the stored iterations of `span`, first and last, in order; or continue.

    Raises ConfigError for settings that the stored rollouts were made with, or for an objective without
    importance correction, InputError when `run` lacks one of the iterations.
    """
    stored = stored_run(run, store)
    require_other_name(run, name)
    for iteration in range(span[0], span[1] + 1):
        stored.entry(iteration, "generate_rollouts")
    artifacts = ArtifactStore(store)
    checkpoint_id = None
    if checkpoint is not None:
        checkpoint_id = find_checkpoint(artifacts, stored.run, checkpoint)[1]
    origin = OfflineOrigin(
        run=run,
        first_iteration=span[0],
        last_iteration=span[1],
        checkpoint_id=checkpoint_id,
        evaluates=evaluates,
    )
    base, new = _offline_config(stored, artifacts, span[0], origin.iterations, name, settings, config_file)
    require_correction(new)
    heading = f"Offline: stored rollouts of iterations {span[0]} to {span[1]} of {run}, in order"
    changed = changed_settings(base, new)
    work_on_new_run(new, store, origin, origin.iterations, [heading, *(f"  {line}" for line in changed)])
    conclude(new.name, run, store, origin.iterations, json)


def _offline_config(
    stored: StoredRun,
    artifacts: ArtifactStore,
    first: int,
    iterations: int,
    name: str,
    settings: Sequence[str],
    config_file: Path | None,
) -> tuple[RunConfig, RunConfig]:
    """The configuration that the run has, and that of training offline on it.

    The importance correction is switched on, evaluation uses the embedded engine, and there is no memory,
    unless `settings` say otherwise.
    """
    own = own_settings(settings)
    imported = stored.find(0, "bootstrap") is None
    if imported and config_file is None:
        raise InputError(
            f"run {stored.name} has trajectories and no policy of its own; name one with --config CONFIG"
        )
    if not imported and config_file is not None:
        raise InputError(f"run {stored.name} has a configuration of its own; change it with --set")
    base = run_config(stored.run) if config_file is None else load_config(config_file)
    needed = ["memory=off", f"name={json_format.dumps(name)}", f"iterations={iterations}"]
    if not any(key.startswith("engine") for key in own) and base.engine.type != "transformers":
        needed.append("engine={type: transformers}")
    chosen = any(key.startswith(("objective.correction", "objective=")) for key in own)
    if base.objective.correction.type == "bypass" and not chosen:
        needed.append("objective.correction={type: decoupled}")
    adapted = change_config(base, needed)
    new = change_config(adapted, own)
    if not imported:
        refuse_earlier_changes(adapted, new, artifacts, stored, first, "update_policy")
    return base, new

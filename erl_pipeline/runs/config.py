"""The configuration of a stored run, and the columns that its tables and reports show."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.explain import explain
from erl_pipeline.config.loading import PLUGGED, require_usable_plugins
from erl_pipeline.config.plugins import Group, Operated, operational_names, plugins, settings_of
from erl_pipeline.config.run import ReadOnlyConfig, RunConfig
from erl_pipeline.config.shown import settings_differences
from erl_pipeline.plan.column import Column
from erl_pipeline.stages.columns import NOT_SCORED_COLUMNS, with_groups
from erl_pipeline.stages.training.warm_start import warm_start_columns
from storage.errors import ConfigError, InputError
from storage.runs.documents import IMPORTED, read_origin
from storage.runs.run import Run
from storage.texts import counted

_POLICY: TypeAdapter[PluginSettings] = TypeAdapter(settings_of("policies"))
_MAY_CHANGE = {"iterations", "metrics", "runner", "resources", "store", "retention", "warnings"}


def run_config(run: Run) -> RunConfig:
    """The configuration that a run was begun with, with what may change as it was last continued.

    Raises ConfigError when this version of the program does not know those settings, and InputError for a run
    that was never trained: imported trajectories, or a standalone memory.
    """
    _require_trained(run)
    _require_installed(run, PLUGGED)
    require_usable_plugins(run.config)
    return _validated(run, RunConfig)


def readable_config(run: Run) -> RunConfig:
    """Like `run_config`, for commands that only read what a run has made. Its environment need not be
    installed, or may be broken; the result is then a `ReadOnlyConfig`."""
    _require_trained(run)
    environment = type_of(run.config, "environment")
    if environment is None or environment in plugins("environments").found:
        return run_config(run)
    _require_installed(run, {key: group for key, group in PLUGGED.items() if key != "environment"})
    require_usable_plugins({key: value for key, value in run.config.items() if key != "environment"})
    return _validated(run, ReadOnlyConfig)


def _validated(run: Run, model: type[RunConfig]) -> RunConfig:
    try:
        return model.model_validate(_without_former(run.config))
    except ValidationError as error:
        problems = "\n  ".join(explain(error, model, {}))
        raise ConfigError(
            f"run {run.name} was begun with settings of another version:\n  {problems}"
        ) from error


def _without_former(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run without `evaluation.stream`, which earlier versions had, where it was off."""
    known = dict(settings)
    evaluation = known.get("evaluation")
    if isinstance(evaluation, dict) and evaluation.get("stream", "") is None:
        known["evaluation"] = {key: value for key, value in evaluation.items() if key != "stream"}
    return known


def _with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, with the defaults of those that the version which began it did not have; as they
    are stored where this version cannot read them."""
    known = _without_former(settings)
    try:
        return RunConfig.model_validate(known).model_dump(mode="json")
    except ValidationError:
        return known


def refuse_texts(run: Run) -> None:
    """Raise InputError for a run that holds only texts, on which no policy gradient can be trained."""
    if "source_system" in run.config.get(IMPORTED, {}):
        raise InputError(
            f"run {run.name} holds imported conversations, which have no tokens and no log-probabilities: a "
            "policy can only begin with a warm start on them (policy.warm_start: {type: messages})"
        )


def _require_trained(run: Run) -> None:
    """Raise InputError for a run that has no policy."""
    refuse_texts(run)
    if (served := run.config.get(IMPORTED, {}).get("served")) is not None:
        raise InputError(
            f"run {run.name} holds the traffic of run {served} and is not trained; "
            f"`learn {served}` trains on it"
        )
    if IMPORTED in run.config:
        raise InputError(
            f"run {run.name} holds imported trajectories and is not trained; train another run on them with "
            "`replay --offline --config CONFIG --name NAME`"
        )
    if "method" not in run.config and "memory" in run.config:
        raise InputError(
            f"run {run.name} is a standalone memory and is not trained; "
            f"`memory list {run.name}` and the other commands of `memory` show what it holds"
        )


def run_policy(run: Run) -> PluginSettings:
    """The policy that a run was begun with, even if plug-ins of its other settings are not installed.

    Raises ConfigError and InputError as `run_config` does.
    """
    _require_trained(run)
    try:
        return _POLICY.validate_python(run.config.get("policy"))
    except ValidationError as error:
        raise ConfigError(
            f"run {run.name} was begun with a policy of another version "
            f"({counted(error.error_count(), 'problem')} in policy)"
        ) from error


def _require_installed(run: Run, groups: Mapping[str, Group]) -> None:
    """Raise ConfigError if a run was begun with a plug-in of these groups that is not installed now."""
    for key, group in groups.items():
        type_, known = type_of(run.config, key), plugins(group)
        if type_ is not None and type_ not in {*known.found, *(each.type for each in known.broken)}:
            raise ConfigError(
                f"run {run.name} was begun with {key} {type_}, which no installed package provides. Install "
                "the package again; `erl-pipeline plugins` lists what is installed."
            )


def type_of(settings: Mapping[str, Any], key: str) -> str | None:
    """The type of the plug-in that a setting names; None if it names none."""
    group = settings.get(key)
    named = group.get("type") if isinstance(group, Mapping) else group
    return named if isinstance(named, str) else None


def is_blank(store_uri: str, run: Run) -> bool:
    """Whether a run was registered to be trained, but nothing was made for it yet, so that it may still get
    other settings. One that begins from another run keeps its settings."""
    return (
        "method" in run.config
        and IMPORTED not in run.config
        and read_origin(store_uri, run.name) is None
        and not run.recorded()
    )


def refuse_other_settings(run: Run, config: RunConfig) -> None:
    """Raise ConfigError if a run was begun with other settings than those of `config`. Only `iterations`,
    `metrics`, `runner`, `resources`, `store`, `retention`, `warnings` and the operational settings of the
    engine and of the trainer may change."""
    differences = settings_differences(
        _fixed(_with_defaults(run.config)), _fixed(config.model_dump(mode="json"))
    )
    if differences:
        raise ConfigError(
            f"run {run.name} exists with other settings: {'; '.join(differences)}. "
            "Continue it with its own settings, or give the changed run another --name "
            "(a comparison: --set name=...)."
        )


def continued_settings(run: Run, config: RunConfig) -> dict[str, Any]:
    """The settings of a run that goes on with `config`: its own, and of those that may change the new ones.
    So whoever works on the run later, as a schedule does, has the rules and machines that were given last.

    Raises ConfigError as `refuse_other_settings` does.
    """
    refuse_other_settings(run, config)
    given = config.model_dump(mode="json")
    # What is fixed of the engine and of the trainer is the same in both.
    return {**run.config, **{key: given[key] for key in (*sorted(_MAY_CHANGE), "engine", "trainer")}}


def keep_settings(run: Run, config: RunConfig) -> None:
    """Store the settings that a run goes on with (`continued_settings`). A run that has them is not locked.

    Raises ConfigError as `refuse_other_settings` does, and RunBusy when a process works on the run.
    """
    settings = continued_settings(run, config)
    if settings != run.config:
        with run.lock():
            run.keep_settings(settings)


def _fixed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run keeps to its end."""
    fixed = {key: value for key, value in settings.items() if key not in _MAY_CHANGE}
    operated: tuple[tuple[str, Operated], ...] = (("engine", "engines"), ("trainer", "trainers"))
    for name, group in operated:
        chosen = fixed.get(name, {})
        operational = operational_names(group, chosen["type"]) if "type" in chosen else frozenset()
        fixed[name] = {key: value for key, value in chosen.items() if key not in operational}
    return fixed


def method_columns(config: RunConfig) -> tuple[Column, ...]:
    """The columns of a configuration, from left to right: those of its warm start, of its method with the
    groups of settings beside it, and of what was not scored."""
    own = plugins("methods")[config.method.type].value.columns(config.method)
    shown = with_groups(
        own,
        replays=config.replay is not None,
        form=config.distillation_form,
        lessons=None if config.lessons is None else config.lessons.settings,
    )
    return (*warm_start_columns(config), *shown, *NOT_SCORED_COLUMNS)


def run_columns(run: Run) -> tuple[Column, ...]:
    """The columns of a stored run; none for a run that holds only imported trajectories.

    Raises ConfigError when this version of the program does not know the run's settings.
    """
    return () if IMPORTED in run.config else method_columns(readable_config(run))

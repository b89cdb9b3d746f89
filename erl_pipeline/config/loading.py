"""Making a validated `RunConfig` from a YAML file and `--set` overrides, with errors that help the user."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from erl_pipeline.config.base import AnySettingsT, Settings
from erl_pipeline.config.explain import KeyPath, explain, parse_yaml, shorten
from erl_pipeline.config.plugins import Group, plugins
from erl_pipeline.config.run import RunConfig
from storage.errors import ConfigError
from storage.texts import counted

Options = Mapping[str, tuple[str, Any]]
"""Options of a command that set a setting: name of the option, such as `--name` -> (dotted key, value)."""

_NONE: Options = {}

PLUGGED: Mapping[str, Group] = {
    "environment": "environments",
    "method": "methods",
    "policy": "policies",
    "engine": "engines",
    "trainer": "trainers",
    "runner": "runners",
}
"""Settings whose `type` names a plug-in -> the group of the plug-in."""


def load_config(path: str | Path, overrides: Sequence[str] = (), options: Options = _NONE) -> RunConfig:
    """Read and validate a run's configuration.

    Args:
        path: a YAML file.
        overrides: `dotted.key=value` each, the value in YAML. They take precedence over the file, and later
            ones over earlier ones.
        options: take precedence over both.

    Raises:
        ConfigError: the file cannot be read or is not YAML, or settings are unknown, of the wrong type,
            out of bounds or impossible together. The message lists all problems, one per line.
    """
    values, lines = _settings_in(Path(path), "ready configurations are in configs/")
    return _validate(values, lines, overrides, options, str(path))


def load_settings(path: Path, model: type[AnySettingsT], hint: str, only: str | None = None) -> AnySettingsT:
    """Read and validate a file of settings that are not a run's. `hint`: for a file that is not there, where
    such files or their settings are described. `only`: the file holds this one setting.

    Raises ConfigError as `load_config` does.
    """
    values, lines = _settings_in(path, hint)
    if only is not None:
        values, lines = {only: values}, {(only, *key): line for key, line in lines.items()}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise all_problems(error, model, lines, str(path)) from error


def change_config(config: RunConfig, overrides: Sequence[str], options: Options = _NONE) -> RunConfig:
    """A configuration with some settings changed; all others stay, even those that were defaults.

    Raises ConfigError as `load_config` does.
    """
    return _validate(config.model_dump(mode="json"), {}, overrides, options, f"run {config.name}")


def _validate(
    values: dict[str, Any],
    origins: dict[KeyPath, str],
    overrides: Sequence[str],
    options: Options,
    where: str,
) -> RunConfig:
    given = [("--set", *_parse_override(override)) for override in overrides]
    given += [(option, tuple(key.split(".")), value) for option, (key, value) in options.items()]
    for source, key, value in given:
        _set(values, key, value)
        for replaced in [known for known in origins if known[: len(key)] == key]:
            del origins[replaced]
        for depth in range(1, len(key)):
            origins.setdefault(key[:depth], source)
        origins[key] = source
    require_usable_plugins(values)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise all_problems(error, RunConfig, origins, where) from error


def all_problems(
    error: ValidationError, model: type[Settings], origins: Mapping[KeyPath, str], where: str
) -> ConfigError:
    """One error with everything that is wrong with settings. `origins`: where each comes from."""
    problems = explain(error, model, origins)
    return ConfigError("\n  ".join([f"{where}: {counted(len(problems), 'problem')}", *problems]))


def require_usable_plugins(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if settings name a plug-in that is installed but cannot be used."""
    for key, group in PLUGGED.items():
        value = values.get(key)
        type_ = value.get("type") if isinstance(value, dict) else value
        if isinstance(type_, str):
            plugins(group).require_usable(type_)


def _settings_in(path: Path, hint: str) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """The settings that a file holds, and the line of each key."""
    text = read_settings(path, hint)
    document = parse_yaml(text, str(path))
    values = {} if document.value is None else document.value
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds {shorten(values)}; allowed is a mapping of settings, `key: value`")
    return values, {key: f"line {line}" for key, line in document.lines.items()}


def read_settings(path: Path, hint: str) -> str:
    """The text of a file of settings. `hint`: what to say of one that is not there. Raises ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {hint}") from None
    except (OSError, ValueError) as error:
        reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from error


def _parse_override(override: str) -> tuple[KeyPath, Any]:
    key, equals, value = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError(
            f"--set {override}: allowed is a dotted key and a value, such as rollouts.group_size=4"
        )
    return path, parse_yaml(value, f"--set {override}").value


_NAMED: Mapping[str, str] = {"method": "type", "trainer": "type", "runner": "type", "distillation": "form"}
"""Groups of settings for which a configuration may give only one setting, or nothing; and which this is."""


_ON: Mapping[str, Mapping[str, Any]] = {"distillation": {"form": "separate"}}
"""What `on` means for a group of settings whose defaults are not on for every method."""


def _set(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    """Put `value` at a dotted key. Groups on its path that are absent or just `on` are created."""
    group = values
    for depth, part in enumerate(path[:-1], start=1):
        inner = group.get(part)
        if depth == 1 and part in _NAMED:
            named = RunConfig.model_fields[part].default if inner is None else inner
            if isinstance(named, str):
                inner = group[part] = {_NAMED[part]: named}
        if inner is None or inner is True:
            inner = group[part] = dict(_ON.get(part, {})) if inner else {}
        if not isinstance(inner, dict):
            above = ".".join(path[:depth])
            shown = "off" if inner is False else shorten(inner)
            raise ConfigError(f"--set {'.'.join(path)}: {above} is {shown}, which has no settings of its own")
        group = inner
    group[path[-1]] = value

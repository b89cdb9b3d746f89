"""How runs differ in their settings and in the code that made their artifacts."""

from collections.abc import Mapping, Sequence
from typing import Any

from command_line.ui.stored import RunView
from storage.runs.run import flat_settings

_NOT_COMPARED = ("name", "iterations", "runner", "resources", "store", "metrics", "schema_version")


def varied_settings(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Setting -> run -> its value as JSON, for the settings that differ between runs.

    A run that lacks a setting is not among the runs of that setting.
    """
    flat = {name: _compared(config) for name, config in configs.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    return {
        key: {name: settings[key] for name, settings in flat.items() if key in settings}
        for key in keys
        if len({settings.get(key) for settings in flat.values()}) > 1
    }


def _compared(config: Mapping[str, Any]) -> dict[str, str]:
    settings = flat_settings(config)
    return {key: value for key, value in settings.items() if key.partition(".")[0] not in _NOT_COMPARED}


Versions = dict[frozenset[str], dict[str, None]]
"""The packages of a stage's code -> the versions of one of them that a run used beside the others."""


def code_differences(runs: Sequence[RunView]) -> list[tuple[str, list[str]]]:
    """What differs in the runs' code: (commit, package or stage version; its value in each run)."""
    rows = [_code_of(run) for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    # A stage or package that some runs lack is a difference of settings, and is shown with these.
    in_all = [name for name in names if all(name in row for row in rows)]
    compared = [(name, _comparable([row[name] for row in rows])) for name in in_all]
    return [(name, values) for name, values in compared if len(set(values)) > 1]


def _code_of(run: RunView) -> dict[str, Versions]:
    found: dict[str, Versions] = {}
    for record in run.history:
        if record.on_request:
            continue
        manifest, alone = record.manifest, frozenset[str]()
        for name, beside, version in (
            ("commit", alone, manifest.code_version[:19]),
            *((package, frozenset(manifest.code), each[:12]) for package, each in manifest.code.items()),
            (f"version of {record.stage}", alone, str(manifest.stage_version)),
        ):
            found.setdefault(name, {}).setdefault(beside, {})[version] = None
    return found


def _comparable(runs: Sequence[Versions]) -> list[str]:
    """The versions of a package in each run, as text.

    A fingerprint is of the part of a package that a stage uses, and one method uses more than another. So
    what only some runs use beside the same packages is left out, unless it changed during a run.
    """
    shared = set(runs[0]).intersection(*runs)
    return [
        ", ".join(
            dict.fromkeys(
                version
                for beside, versions in run.items()
                if beside in shared or len(versions) > 1
                for version in versions
            )
        )
        for run in runs
    ]

"""Differences in the code that made runs."""

from __future__ import annotations

from collections.abc import Sequence

from command_line.ui.stored import StoredRun


def code_differences(runs: Sequence[StoredRun]) -> list[tuple[str, list[str]]]:
    """What differs in the runs' code: (commit, package or stage version; its value in each run)."""
    rows: list[dict[str, str]] = []
    for run in runs:
        found: dict[str, dict[str, None]] = {}
        for record in run.history:
            if record.on_request:
                continue
            found.setdefault("commit", {})[record.manifest.code_version[:19]] = None
            for package, fingerprint in record.manifest.code.items():
                found.setdefault(package, {})[fingerprint[:12]] = None
            found.setdefault(f"version of {record.stage}", {})[str(record.manifest.stage_version)] = None
        rows.append({name: ", ".join(values) for name, values in found.items()})
    names = dict.fromkeys(name for row in rows for name in row)
    # A stage or package that some runs lack is a difference of settings, and is shown with these.
    in_all = [name for name in names if all(name in row for row in rows)]
    return [(name, [row[name] for row in rows]) for name in in_all if len({row[name] for row in rows}) > 1]

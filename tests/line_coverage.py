"""A pytest plugin that notes which lines of the packages the tests execute, in pytest's own processes and in
those that `tests/forked.py` forks.

`make test` and `make coverage` load it. Each process writes a file into build/coverage as it ends. SlipCover
removes a probe once it was hit, which takes less time than a tracer. Not seen are lines that only other
processes execute, or processes that are killed, and those of `UNSEEN`.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import slipcover
from slipcover.importer import SlipcoverLoader

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "coverage"
PACKAGES = ("storage", "erl_pipeline", "flows", "command_line", "reference")

UNSEEN = (
    "flows.ray",  # Ray cannot send functions with probes to its workers.
    "erl_pipeline.trainers.local.attention",  # torch.compile cannot trace a probe.
    "erl_pipeline.sizing.recorder",  # With probes it holds tensors for longer, and counts their memory.
)


class _MeasuredImports:
    """Finds the modules of the packages, and has SlipCover put its probes into them."""

    def __init__(self, measured: slipcover.Slipcover) -> None:
        self._measured = measured

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES or name.startswith(UNSEEN):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader = SlipcoverLoader(self._measured, spec.loader, spec.origin)
        return spec


class _Measured(slipcover.Slipcover):  # type: ignore[misc]
    """Looks again where another thread has changed what it looked at, as by an import."""

    def deinstrument_seen(self) -> None:
        for left in reversed(range(_TRIES)):
            try:
                super().deinstrument_seen()
                break
            except RuntimeError as error:
                if not left or "changed size during iteration" not in str(error):
                    raise


_TRIES = 5
_MEASURED = _Measured(source=[str(ROOT / package) for package in PACKAGES])
# Now, since conftest.py imports the packages.
sys.meta_path.insert(0, _MeasuredImports(_MEASURED))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Write what this process has executed."""
    _write(f"{os.getpid()}.json", _MEASURED.get_coverage())


def _begin_in_forked(measured: slipcover.Slipcover) -> None:
    """In a forked process: forget what the process before it has imported, and write the rest at the end."""
    measured.all_seen.clear()
    measured.newly_seen.clear()
    util.Finalize(None, _write_forked, (measured,), exitpriority=0)


def _write_forked(measured: slipcover.Slipcover) -> None:
    files = {
        name: {"executed_lines": sorted(measured.all_seen[name] | lines), "missing_lines": []}
        for name, lines in {**measured.all_seen, **measured.newly_seen}.items()
    }
    meta = {"software": "slipcover", "branch_coverage": False, "show_contexts": False}
    # Sorted after the files of pytest's processes, into which it is merged; numbers of processes come again.
    _write(f"forked-{uuid.uuid4().hex}.json", {"meta": meta, "files": files})


def _write(name: str, found: Mapping[str, Any]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    beside = FOLDER / f"{name}.part"
    beside.write_text(json.dumps(found))
    beside.rename(FOLDER / name)  # A test may kill a forked process meanwhile.


# The process that others are forked from imports this module first.
util.register_after_fork(_MEASURED, _begin_in_forked)

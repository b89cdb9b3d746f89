"""A pytest plugin that notes which lines of the packages the tests execute in pytest's own processes.

`make test` and `make coverage` load it. Each process of pytest writes a file into build/coverage. SlipCover
removes a probe once it was hit, which takes less time than a tracer. Two kinds of lines are not seen: those
that only other processes execute, and those of `UNSEEN`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

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


_MEASURED = slipcover.Slipcover(source=[str(ROOT / package) for package in PACKAGES])
# Now, since conftest.py imports the packages.
sys.meta_path.insert(0, _MeasuredImports(_MEASURED))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Write what this process has executed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{os.getpid()}.json").write_text(json.dumps(_MEASURED.get_coverage()))

"""Imports transformers' model classes without packages that they look for and this project never calls.

`import erl_pipeline.policies.lean_imports` must come before the first import of a model class. Transformers
imports these packages whenever they are installed, which took half of the time of that import:

- scikit-learn, with pandas: one function of assisted generation, where a small model guesses ahead. The
  engines here draw every token themselves.
- scipy: the matching of boxes in losses of object detection.
- boto3, by way of accelerate: the command that configures Amazon SageMaker.

Transformers also asks which distribution each package is from; `package_distributions` answers that faster.

An entry None in `sys.modules` is Python's own way to say that a module cannot be imported. It is removed
right after the import, so that other code can still import these packages; only the three uses above do
without them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NOT_CALLED = ("sklearn", "scipy", "boto3")
_MODEL_CLASSES = ("transformers.modeling_utils", "transformers.generation.utils")


def package_distributions() -> dict[str, list[str]]:
    """The installed distributions of each top-level package, as `importlib.metadata.packages_distributions`
    gives them, in a sixth of its time: it makes a path object of each of their files."""
    found: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        packages = set((distribution.read_text("top_level.txt") or "").split())
        if not packages:
            lines = (distribution.read_text("RECORD") or "").splitlines()
            files = [line.partition(",")[0] for line in lines]
            packages = {file.partition("/")[0].removesuffix(".py") for file in files if file.endswith(".py")}
        about = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        if name := re.search(r"^Name: *(.+?) *$", about, re.MULTILINE):
            for package in packages:
                found.setdefault(package, []).append(name[1])
    return found


@contextmanager
def _quick_distributions() -> Iterator[None]:
    """For the import of transformers, which asks for them once."""
    slow = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = package_distributions
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = slow


@contextmanager
def _absent(names: tuple[str, ...]) -> Iterator[None]:
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    _look_again()
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
        _look_again()


def _look_again() -> None:
    """Make transformers check again which packages are installed: it caches the answer."""
    from transformers.utils import is_scipy_available, is_sklearn_available

    is_scipy_available.cache_clear()
    is_sklearn_available.cache_clear()


with _quick_distributions(), _absent(_NOT_CALLED):
    for module in _MODEL_CLASSES:
        importlib.import_module(module)

"""Imports transformers' model classes faster, without what this project never calls.

`import erl_pipeline.policies.lean_imports` must come before the first import of a model class. Transformers
imports these packages whenever they are installed, which takes 1.2 of the 5.5 seconds of that import:

- scikit-learn, with pandas: one function of assisted generation, where a small model guesses ahead. The
  engines here draw every token themselves.
- scipy: the matching of boxes in losses of object detection.
- boto3, by way of accelerate: the command that configures Amazon SageMaker.

An entry None in `sys.modules` is Python's own way to say that a module cannot be imported. It is removed
right after the import, so that other code can still import these packages; only the three uses above do
without them.

Transformers also lists the distributions of all installed packages, which takes about a second where there
are many. It then asks for three of them; here they are looked up when it asks.
"""

import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

_NOT_CALLED = ("sklearn", "scipy", "boto3")
_MODEL_CLASSES = ("transformers.modeling_utils", "transformers.generation.utils")


class _Distributions(Mapping[str, list[str]]):
    """Package -> its distributions. A distribution that has the package's name is found without the list of
    all of them, which is made once for anything else, such as PIL from pillow."""

    def __init__(self, list_all: Callable[[], Mapping[str, list[str]]]) -> None:
        self._all = cache(list_all)

    def __getitem__(self, package: str) -> list[str]:
        try:
            return [importlib.metadata.distribution(package).name]
        except importlib.metadata.PackageNotFoundError:
            return self._all()[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


@contextmanager
def _distributions_when_asked() -> Iterator[None]:
    list_all = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = lambda: _Distributions(list_all)
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = list_all


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


with _distributions_when_asked(), _absent(_NOT_CALLED):
    for module in _MODEL_CLASSES:
        importlib.import_module(module)

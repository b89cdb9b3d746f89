"""The function that is an agent: how it is found, in which package, and what is told where it cannot be."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from erl_pipeline.config.plugins import top_package
from storage.errors import ConfigError


class _FolderOfCall(MetaPathFinder):
    """Finds modules in the folder that the command is called in, as `python -m` does, but last. A folder
    there without `__init__.py` is found where it holds modules, and where the name of an agent's function
    begins with it: another one named `wandb` is no library, but what that library has written.

    It is asked first, and asks the others itself: they may know further folders of a package that has no
    `__init__.py`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.wanted = set[str]()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None:  # It is within a package, which has a path of its own.
            return None
        here = PathFinder.find_spec(fullname, [self.folder])
        if here is None or not (here.loader or fullname in self.wanted or _holds_modules(here)):
            return None
        others = [each for each in sys.meta_path if not isinstance(each, _FolderOfCall)]
        # One without the method is passed over, as by Python itself.
        found = (each.find_spec(fullname, None, target) for each in others if hasattr(each, "find_spec"))
        elsewhere = next(filter(None, found), None)
        if elsewhere is None:
            return here
        if elsewhere.loader:
            return None
        if not here.loader:
            here.submodule_search_locations = [*_folders(elsewhere), *_folders(here)]
        return here


def _folders(package: ModuleSpec) -> Sequence[str]:
    return package.submodule_search_locations or ()


def _holds_modules(package: ModuleSpec) -> bool:
    return any(path.is_file() for folder in _folders(package) for path in Path(folder).glob("[!.]*.py"))


def find_in_folder_of_call(function: str) -> None:
    """Let an agent's function, `MODULE:NAME`, be imported from the folder that the command is called in, and
    what it imports."""
    with suppress(FileNotFoundError):  # It was removed.
        if not sys.flags.safe_path and (folder := os.getcwd()) not in sys.path:
            ours = [each for each in sys.meta_path if isinstance(each, _FolderOfCall)]
            finder = next((each for each in ours if each.folder == folder), None)
            if finder is None:
                finder = _FolderOfCall(folder)
                sys.meta_path.insert(0, finder)
            finder.wanted.add(re.split("[.:]", function)[0])


def function_named(name: str) -> Callable[[Any], Any]:
    """The function of `environment.function`. Raises `ConfigError` where there is none."""
    find_in_folder_of_call(name)
    module, _, attribute = name.partition(":")
    try:
        imported = importlib.import_module(module)
        found = getattr(imported, attribute, None)
    except ImportError as error:
        raise ConfigError(
            f"environment.function: {name} cannot be imported: {error}{_place_of_package(error.name)}; its "
            "package must be installed, or in the folder that the command is called in; there a folder "
            "without __init__.py is a package only if modules lie in it"
        ) from error
    except (Exception, SystemExit) as error:  # whatever a module does that is not ours
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if each.name == "<module>"][:1]  # behind those of what imports it
        place = "".join(f" ({each.filename}, line {each.lineno})" for each in own)
        raise ConfigError(
            f"environment.function: {name} cannot be imported: {type(error).__name__}: {error}{place}"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"environment.function: {module} ({_place_of(imported)}) has no function {attribute}"
        )
    function: Callable[[Any], Any] = found
    return function


def _place_of(module: ModuleType) -> str:
    """Its file, or its folders where it is a package without `__init__.py`."""
    return getattr(module, "__file__", None) or ", ".join(getattr(module, "__path__", ["built in"]))


def _place_of_package(missing: str | None) -> str:
    """Where the outermost package of a missing module is, if it could be imported: it may be another of that
    name."""
    package = (missing or "").partition(".")[0]
    imported = sys.modules.get(package)
    return "" if imported is None else f" ({package} is {_place_of(imported)})"


def package_of(module: str) -> str:
    """The outermost package of a function's module that has sources. Where none has, the folder that it is
    in: its modules may import each other. A module in no folder is alone."""
    package = top_package(module)
    folder = module.rpartition(".")[0]
    if package != module or not folder:
        return package
    with suppress(ModuleNotFoundError):  # Its fingerprint cannot be taken then, and that is told.
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is None:
            return folder
    return package

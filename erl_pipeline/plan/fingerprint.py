"""Fingerprints of code, which change when a package's code may do something else.

They are taken over syntax trees, so that comments, blank lines and formatting change nothing. Of a whole
package, docstrings count. Data files of a package (templates, word lists) count with all their bytes; files
whose names begin with a dot do not count, and of links to folders only those to packages.
`plan.plugin_code` takes those of plug-ins.
"""

import ast
import hashlib
import importlib.util
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from storage.artifacts.recipe import ID_LENGTH
from storage.errors import ConfigError


@lru_cache(maxsize=64)
def package_fingerprint(package: str) -> str:
    """The fingerprint of all files of a package, of a module that is not a package, or of the modules in the
    folders that together are one without `__init__.py`.

    Raises ConfigError for a package that has no source files on this machine.
    """
    found: dict[str, Path] = {}
    for place in _places(package):
        for name, path in [(place.name, place)] if place.is_file() else package_files(place):
            found.setdefault(name, path)  # An import finds the first.
    return files_fingerprint(found.items())


def package_place(package: str) -> Path:
    """The folder of a package, or the file of a module that is not a package. A folder with modules, but
    without `__init__.py`, is a package too; of several, this is the first.

    Raises ConfigError for a package that has no source files on this machine.
    """
    return _places(package)[0]


def _places(package: str) -> list[Path]:
    """Where a package is: in more than one folder only where these have no `__init__.py`."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # A package above it is missing.
        spec = None
    if spec is not None and spec.origin is None:
        folders = [each for each in map(Path, spec.submodule_search_locations or ()) if _modules_in(each)]
        if folders:
            return folders
    if spec is None or spec.origin is None or not spec.has_location:
        raise ConfigError(
            f"package {package} has no source files, so no fingerprint of its code can be taken; it must be "
            "installed, or in the folder that the command is called in"
        )
    origin = Path(spec.origin)
    return [origin if spec.submodule_search_locations is None else origin.parent]


def package_files(place: Path) -> list[tuple[str, Path]]:
    """The names and paths of a package's files; none for a single module."""
    if place.is_file():
        return []
    if not (place / "__init__.py").is_file():
        # Other folders in it may be anything.
        return [(path.name, path) for path in _modules_in(place)]
    return sorted((path.relative_to(place).as_posix(), path) for path in _files(place))


def files_fingerprint(files: Iterable[tuple[str, Path]]) -> str:
    """The fingerprint of named files, in the order of their names."""
    digest = hashlib.sha256()
    for name, path in sorted(files):
        content = path.read_bytes()
        if path.suffix == ".py":
            # Files that this Python cannot parse, such as code templates, count as data; so does what is
            # nested too deeply, such as a sum of a thousand terms.
            with suppress(SyntaxError, ValueError, RecursionError):
                content = _normalised_anywhere(content)
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()[:ID_LENGTH]


def _normalised_anywhere(source: bytes) -> bytes:
    """As `normalised_source`, wherever it is called from: how deep code may be nested depends on how deep the
    caller is, and a thread begins at the top."""
    try:
        return normalised_source(source)
    except RecursionError:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(normalised_source, source).result()


def normalised_source(source: str | bytes) -> bytes:
    """A module's syntax tree as text, which does not depend on comments and formatting.

    Bytes are read in the encoding that they declare. Raises `SyntaxError` or `ValueError` for a source that
    is not Python.
    """
    return normalised_tree(ast.parse(source))


def normalised_tree(tree: ast.AST) -> bytes:
    """A syntax tree as text. Empty fields are left out, so that fields which a later Python adds change
    nothing."""
    parts: list[str] = []
    _write(tree, parts)
    return "".join(parts).encode()


def _write(value: object, parts: list[str]) -> None:
    """Append the text of a value. The whole tree shares one list for speed: every command waits for this."""
    if isinstance(value, ast.AST):
        parts.append(f"{type(value).__name__}(")
        for name, part in ast.iter_fields(value):
            # `kind` says that a string was written as u"..."; `type_comment` is a comment.
            if part in (None, []) and not isinstance(value, ast.Constant):
                continue
            if name not in ("kind", "type_comment"):
                parts.append(f"{name}=")
                _write(part, parts)
                parts.append(",")
        parts.append(")")
    elif isinstance(value, list):
        parts.append("[")
        for item in value:
            _write(item, parts)
            parts.append(",")
        parts.append("]")
    else:
        # `ascii`, because the characters that `repr` escapes depend on the Python's Unicode version.
        parts.append(ascii(value))


def _modules_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[!.]*.py") if path.is_file())


def _files(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """`above`: the folders that led here, without links."""
    here = (*above, folder.resolve())
    found: list[Path] = []
    with suppress(PermissionError):  # Such as data that a container has written; code there cannot run.
        found += folder.iterdir()
    for path in found:
        if path.name.startswith(".") or path.name == "__pycache__":
            continue
        if path.is_dir():
            if not path.is_symlink() or _is_package_elsewhere(path, here):
                yield from _files(path, here)
        elif path.is_file() and path.suffix not in (".pyc", ".pyo"):
            yield path


def _is_package_elsewhere(link: Path, here: tuple[Path, ...]) -> bool:
    """Whether it leads to code. Another folder may hold any amount of data, and one that led here is
    counted."""
    target = link.resolve()
    return (link / "__init__.py").is_file() and not any(each.is_relative_to(target) for each in here)

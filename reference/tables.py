"""The page of all Parquet tables, from the formats in the code.

The meaning of a column comes from one of two places in the code: the docstring below a field of the same name
in a dataclass of the table's module, or the comment after the column.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

import pyarrow as pa

import erl_pipeline
import storage
from reference.markdown import code, plain, table
from storage.tables.parquet import TableFormat
from storage.tables.trajectories import TRAJECTORIES

_COLUMN = re.compile(r'pa\.field\("(?P<name>\w+)".*?\),?\s*#\s*(?P<text>.+)')


@dataclass(frozen=True)
class Documented:
    """A table, and the module that defines it."""

    format: TableFormat
    module: ModuleType

    @property
    def meanings(self) -> Mapping[str, str]:
        """Column -> its meaning, as far as the module gives it. Columns of the trajectories table mean the
        same in all tables."""
        return {**_shared(), **_said_in(self.module)}


def tables_text() -> str:
    """The page without its introduction, in Markdown."""
    return "\n".join(map(_section, documented_tables()))


def documented_tables() -> list[Documented]:
    """Every table of the project: the trajectories table first, the others by name."""
    found = {each.format.name: each for each in _found()}
    return sorted(found.values(), key=lambda each: (each.format != TRAJECTORIES, each.format.name))


def _found() -> Iterator[Documented]:
    for module in _defining_modules():
        for value in vars(module).values():
            if isinstance(value, TableFormat):
                yield Documented(value, module)
            elif inspect.isfunction(value) and value.__annotations__.get("return") == "TableFormat":
                # This format is built on demand, so that planning does not import pyarrow.
                yield Documented(value(), module)


def _defining_modules() -> Iterator[ModuleType]:
    for package in (storage, erl_pipeline):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            spec = importlib.util.find_spec(info.name)
            if spec is not None and spec.origin is not None and _defines_a_table(spec.origin):
                yield importlib.import_module(info.name)


def _defines_a_table(path: str) -> bool:
    with open(path, encoding="utf-8") as file:
        source = file.read()
    return "TableFormat(" in source and "class TableFormat" not in source


def _section(documented: Documented) -> str:
    form = documented.format
    meanings = documented.meanings
    rows = [
        (
            code(each.name),
            f"{_type(each.type)}{', or null' if each.nullable else ''}",
            plain(meanings.get(each.name, "")),
        )
        for each in form.schema
    ]
    head = f"## {code(form.name)}\n\n{plain(_about(documented))}\n\n"
    defined = f"Version {form.version} of the schema, defined in `{documented.module.__name__}`.\n\n"
    return head + defined + table(("column", "type", "what it holds"), rows)


def _about(documented: Documented) -> str:
    """The docstring below the constant that holds the format, or else the start of the module's docstring."""
    tree = ast.parse(inspect.getsource(documented.module))
    names = {name for name, value in vars(documented.module).items() if value is documented.format}
    below = dict(docstrings_of(tree))
    said = next((below[name] for name in names if name in below), "")
    return said or (documented.module.__doc__ or "").split("\n\n")[0]


def _shared() -> Mapping[str, str]:
    import storage.tables.trajectories

    return _said_in(storage.tables.trajectories)


def _said_in(module: ModuleType) -> Mapping[str, str]:
    source = inspect.getsource(module)
    comments = {found["name"]: found["text"] for found in _COLUMN.finditer(source)}
    fields: dict[str, str] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            fields |= dict(docstrings_of(node))
    return {**fields, **comments}


def docstrings_of(node: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Pairs of a name that a module or class body sets and the docstring below it."""
    for statement, following in zip(node.body, node.body[1:], strict=False):
        target: ast.expr | None = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        said = following.value if isinstance(following, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(said, ast.Constant) and isinstance(said.value, str):
            yield target.id, said.value


def _type(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return f"list of {_type(type_.value_type)}"
    if pa.types.is_struct(type_):
        return "{" + ", ".join(f"{each.name}: {_type(each.type)}" for each in type_) + "}"
    return str(type_)

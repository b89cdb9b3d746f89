"""The walk through one iteration names files and definitions that are there, and not too many of them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", re.MULTILINE)


def test_the_walk_names_at_most_35_files_and_what_is_in_them() -> None:
    rows = ROW.findall((ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    assert 25 <= len(rows) <= 35
    assert len({file for file, _ in rows}) == len(rows)
    for file, name in rows:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        assert name in [node.name for node in tree.body if isinstance(node, kinds)], f"{file}: {name}"

"""Which settings a stage reads, by its source code."""

from __future__ import annotations

import ast


def settings_reads(tree: ast.Module, function: str) -> set[str]:
    """Names that `compute` reads of `call.settings`, directly or by a variable `settings` made of it."""
    (compute,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    aliases = {
        target.id
        for node in ast.walk(compute)
        if isinstance(node, ast.Assign)
        for target, value in _pairs(node)
        if ast.unparse(value) == "call.settings"
    }
    return {
        node.attr
        for node in ast.walk(compute)
        if isinstance(node, ast.Attribute)
        and (ast.unparse(node.value) == "call.settings" or ast.unparse(node.value) in aliases)
    }


def _pairs(node: ast.Assign) -> list[tuple[ast.Name, ast.expr]]:
    """Names and their assigned values, also in `a, b = x, y`."""
    (target,) = node.targets
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        found = list(zip(target.elts, node.value.elts, strict=True))
    else:
        found = [(target, node.value)]
    return [(name, value) for name, value in found if isinstance(name, ast.Name)]

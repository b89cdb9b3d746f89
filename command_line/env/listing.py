"""`erl-pipeline env list`: the environments that are installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from command_line.options import Json
from command_line.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from erl_pipeline.config.plugins.installed import Plugin


def list_environments(json: Json = False) -> None:
    """List the installed environments, the package of each, and what it still needs."""
    from erl_pipeline.config.plugins.installed import plugins

    group = plugins("environments")
    found = [_described(plugin) for plugin in group.found.values()]
    if json:
        broken = [
            {"type": each.type, "distribution": each.distribution, "problem": each.problem}
            for each in group.broken
        ]
        print_json({"environments": found, "broken": broken})
        return
    print_table(
        [
            {
                "type": each["type"],
                "package": f"{each['distribution']} {each['version']}",
                "what it is": each["about"],
                "needs": _needs(each),
            }
            for each in found
        ],
        left=("type", "package", "what it is", "needs"),
    )
    for problem in group.broken:
        print_line(f"{problem.type} of package {problem.distribution} cannot be used: {problem.problem}")
    print_line("Look at one: erl-pipeline env show TYPE")


def _described(plugin: Plugin) -> dict[str, Any]:
    from erl_pipeline.config.plugins.extras import missing_of_extra

    return {
        "type": plugin.type,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "about": (plugin.settings.__doc__ or "").strip().partition("\n")[0],
        "extra": plugin.value.dependencies.extra,
        "missing": missing_of_extra(plugin.distribution, plugin.value.dependencies.extra),
    }


def _needs(described: dict[str, Any]) -> str:
    """The command that installs what is missing; empty if nothing is."""
    if not described["missing"]:
        return ""
    return f"pip install '{described['distribution']}[{described['extra']}]'"

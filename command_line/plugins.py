"""`erl-pipeline plugins`: lists what is installed in each group of plug-ins, and its package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from command_line.options import Json
from command_line.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from erl_pipeline.config.plugins.installed import BrokenPlugin, Plugin


def plugins(json: Json = False) -> None:
    """List the installed plug-ins (environments, methods, trainers, runners, scorers, advantages and
    surrogates), and those that cannot be used."""
    from typing import get_args

    from erl_pipeline.config.plugins.installed import Group
    from erl_pipeline.config.plugins.installed import plugins as find

    groups = [find(group) for group in get_args(Group)]
    found = [plugin for group in groups for plugin in group.found.values()]
    broken = [plugin for group in groups for plugin in group.broken]
    if json:
        print_json(
            {"plugins": [_as_json(each) for each in found], "broken": [_broken_json(each) for each in broken]}
        )
        return
    rows = [
        {
            "group": plugin.group,
            "type": plugin.type,
            "package": f"{plugin.distribution} {plugin.version}",
            "target": plugin.target,
            "fingerprint of its code": _fingerprint(plugin),
        }
        for plugin in found
    ]
    print_table(rows, left=("group", "type", "package", "target", "fingerprint of its code"))
    for each in broken:
        print_line(
            f"{each.group}: {each.type} of package {each.distribution} ({each.target}) cannot be used: "
            f"{each.problem}"
        )


def _fingerprint(plugin: Plugin) -> str:
    from erl_pipeline.plan.fingerprint import package_fingerprint

    return ", ".join(package_fingerprint(package) for package in plugin.packages)


def _as_json(plugin: Plugin) -> dict[str, Any]:
    return {
        "group": plugin.group,
        "type": plugin.type,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
        "fingerprint": _fingerprint(plugin),
    }


def _broken_json(plugin: BrokenPlugin) -> dict[str, Any]:
    return {
        "group": plugin.group,
        "type": plugin.type,
        "distribution": plugin.distribution,
        "target": plugin.target,
        "problem": plugin.problem,
    }

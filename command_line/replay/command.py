"""`erl-pipeline replay`: a branch of a run with other settings, an audit of its bytes, or training on its
stored rollouts."""

from pathlib import Path
from typing import Annotated

import typer

from command_line import options
from storage.errors import InputError

Iteration = Annotated[
    str | None,
    typer.Option(
        metavar="N|A..B", help="The iteration to begin in. Offline: the stored iterations to train on."
    ),
]
FromStage = Annotated[
    str | None, typer.Option("--from", metavar="STAGE", help="The first stage that is computed again.")
]
NewName = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the new run.")]
Offline = Annotated[bool, typer.Option("--offline", help="Train on stored rollouts, without generation.")]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar=options.SELECTOR, help="Where offline training begins; default: the run's first checkpoint."
    ),
]
NoEvaluation = Annotated[
    bool, typer.Option("--no-evaluation", help="Offline: leave out evaluation, which generates attempts.")
]
ConfigOption = Annotated[
    Path | None, typer.Option(metavar="CONFIG", help="Offline, for imported trajectories: the configuration.")
]
Scratch = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where an audit computes; default: the system's.")
]


def replay(
    run: options.RunName,
    iteration: Iteration = None,
    stage: FromStage = None,
    settings: options.Settings = None,
    name: NewName = None,
    iterations: options.LastIteration = None,
    offline: Offline = False,
    checkpoint: Checkpoint = None,
    no_evaluation: NoEvaluation = False,
    config: ConfigOption = None,
    scratch: Scratch = None,
    store: options.ExistingStore = options.DEFAULT_STORE,
    json: options.Json = False,
) -> None:
    """Compute a run again from a stage of an iteration.

    With --set: as a new run, which shares everything before that stage. With --name alone: the same, if an
    entry of the run's memory was forgotten: the new run begins without it. Without either: to prove that the
    stored bytes are reproduced (exit status 1 when they are not). With --offline: train a new run only on
    the stored rollouts.
    """
    if offline:
        if iterations is not None or stage is not None or scratch is not None:
            raise InputError("--iterations, --from and --scratch have no meaning with --offline")
        span = options.iteration_span(iteration)
        if name is None or span is None:
            raise InputError("--offline needs --iteration A..B and a name for the new run, --name NAME")
        from command_line.replay.branches import replay_offline

        replay_offline(run, span, name, settings or [], checkpoint, not no_evaluation, config, store, json)
        return
    if checkpoint is not None or no_evaluation or config is not None:
        raise InputError("--checkpoint, --no-evaluation and --config have a meaning only with --offline")
    if iteration is None or stage is None:
        raise InputError("say where to begin, with --iteration N and --from STAGE, or use --offline")
    first = _whole(iteration)
    if not settings and name is None:
        from command_line.replay.audit import replay_audit

        replay_audit(run, first, stage, iterations, scratch, store, json)
        return
    if name is None:
        raise InputError("changed settings make a new run: name it with --name NAME")
    if scratch is not None:
        raise InputError("--scratch has a meaning only without --set")
    from command_line.replay.branches import replay_branch

    replay_branch(run, first, stage, iterations, settings or [], name, store, json)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"--iteration {text}: allowed is one iteration; A..B only with --offline")
    return int(text)

"""`erl-pipeline replay`: a branch of a run with other settings, an audit of its bytes, or training on its
stored rollouts."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from command_line import options
from command_line.output import counted, print_json, print_line, print_table
from storage.errors import InputError

if TYPE_CHECKING:
    from command_line.interruption import StopRequest
    from command_line.progress import ProgressDisplay
    from erl_pipeline.runs.audit import AuditResult, AuditVerdict

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

_NOT_COMPUTED: tuple[AuditVerdict, ...] = ("input pruned", "other recipe", "damaged")


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
        _audit(run, first, stage, iterations, scratch, store, json)
        return
    if name is None:
        raise InputError("changed settings make a new run: name it with --name NAME")
    if scratch is not None:
        raise InputError("--scratch has a meaning only without --set")
    from command_line.replay.branches import replay_branch

    replay_branch(run, first, stage, iterations, settings or [], name, store, json)


def _audit(
    run: str, iteration: int, stage: str, last: int | None, scratch: Path | None, store: str, json: bool
) -> None:
    """Compute stored artifacts again and compare the bytes.

    Raises InputError when the run does not have these iterations, or the first one no such stage; typer.Exit
    with status 1 when bytes differ.
    """
    from command_line.foreground import in_foreground
    from command_line.stored_run import StoredRun
    from erl_pipeline.plan.sources import unread_sources
    from erl_pipeline.runs.audit import REFUTED, audit
    from erl_pipeline.runs.planning import plan_as_made
    from erl_pipeline.runs.run_plans import shared_stages
    from storage.filesystem import users_scratch

    stored = StoredRun.open(run, store)
    last = stored.last_of_span(iteration, last)
    # A stage that the run lacks is refused before the heading says that it is audited.
    made = plan_as_made(store, stored.run, last, sources=unread_sources(stored.config))
    shared_stages(made, iteration, stage)
    folder = scratch or users_scratch() / "audits"

    def work(display: ProgressDisplay, stop: StopRequest) -> list[AuditResult]:
        return audit(store, run, iteration, stage, last, folder, display, stop.event)

    heading = f"Audit of {run} in {store}: {stage} of iteration {iteration} through iteration {last}"
    kept = "Stopped; nothing is kept of this audit."
    results = in_foreground(heading, last, stored.config, work, lambda: kept)
    verdicts = Counter(result.verdict for result in results)
    if json:
        print_json(
            {
                "run": run,
                "store": store,
                "equal": not any(result.verdict in REFUTED for result in results),
                "verdicts": dict(verdicts),
                "artifacts": [asdict(result) for result in results],
            }
        )
    else:
        print_table([_audit_cells(result) for result in results], left=["stage", "artifact", "verdict"])
        for result in results:
            for line in result.differences:
                print_line(f"iteration {result.iteration}, {_named(result)}: {line}")
        files = sum(result.files for result in results if result.verdict == "equal")
        pruned, other, damaged = (verdicts.pop(each, 0) for each in _NOT_COMPUTED)
        summary = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        print_line(
            f"{counted(verdicts.total(), 'artifact')} computed again: {summary or 'none'}; "
            f"{counted(files, 'file')} {'has' if files == 1 else 'have'} the stored bytes."
        )
        if pruned:
            print_line(
                f"{counted(pruned, 'artifact')} not computed: retention has removed what they are made "
                "from. `train` in another store makes all of it again."
            )
        if other:
            print_line(f"{counted(other, 'artifact')} not computed: today's code would make other ones.")
        if damaged:
            print_line(f"{counted(damaged, 'artifact')} not computed: the stored files are damaged.")
    if any(result.verdict in REFUTED for result in results):
        raise typer.Exit(1)


def _named(result: AuditResult) -> str:
    return f"{result.stage} {result.key}".strip()


def _audit_cells(result: AuditResult) -> dict[str, str]:
    return {
        "iter": str(result.iteration),
        "stage": _named(result),
        "artifact": result.artifact_id[:12],
        "files": str(result.files),
        "seconds": f"{result.seconds:.1f}",
        "verdict": result.verdict,
    }


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InputError(f"--iteration {text}: allowed is one iteration; A..B only with --offline")
    return int(text)

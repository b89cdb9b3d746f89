"""`erl-pipeline certify`: kill copies of a run at random instants, and prove that they end with its bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName, Settings
from command_line.output import bytes_text, counted, print_json, print_line

if TYPE_CHECKING:
    from erl_pipeline.runs.certificate.certificate import Certificate
    from erl_pipeline.runs.certificate.certifying import Certified

Kills = Annotated[int, typer.Option("--kills", min=1, metavar="N", help="Number of kills.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the instants of the kills.")]
Iterations = Annotated[
    int | None,
    typer.Option("--iterations", min=1, metavar="N", help="Only the first N iterations; default: all."),
]
RunnerType = Annotated[
    str | None,
    typer.Option(
        "--runner",
        metavar="TYPE",
        help="Train the copies with another runner, such as in_process; with --set its settings.",
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        "--scratch",
        metavar="FOLDER",
        help="Folder for the copies; default: a temporary one. Every node of a runner must reach it.",
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Do not remove the copies.")]

_SHOWN = 20
"""Most lines of differences that are printed; --json gives all."""


def certify(
    run: RunName,
    kills: Kills = 10,
    seed: Seed = 0,
    iterations: Iterations = None,
    runner: RunnerType = None,
    settings: Settings = None,
    scratch: Scratch = None,
    keep: Keep = False,
    store: ExistingStore = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Kill copies of a run at random instants, and prove that they end with its bytes.

    The driver, workers, ranks and servers get SIGKILL; the copy continues after each kill. The result is kept
    as an artifact. Exit status 1 when something was lost, doubled or different.
    """
    from command_line.foreground import in_foreground
    from erl_pipeline.runs.certificate.certifying import certify as certify_run
    from erl_pipeline.runs.certificate.subject import find_subject
    from storage.filesystem import users_scratch

    subject = find_subject(store, run, iterations, settings or [], runner)
    folder = scratch.resolve() if scratch else users_scratch() / "certificates"
    heading = (
        f"Certifying {counted(subject.plan.iterations, 'iteration')} of {run} in {store} with "
        f"{counted(kills, 'kill')}; what is compared took {sum(subject.seconds):.0f} s to compute"
    )
    certified = in_foreground(
        heading,
        subject.plan.iterations,
        subject.config,
        lambda display, stop: certify_run(subject, kills, seed, folder, keep, display.note, stop.event),
        lambda: "Stopped; there is no certificate.",
    )
    if json:
        print_json(_as_json(certified))
    else:
        _print(certified)
    if not certified.certificate.equal:
        raise typer.Exit(1)


def certificate_line(certificate: Certificate) -> str:
    """A certificate as one phrase for a sentence."""
    targets = Counter(kill.target for kill in certificate.kills)
    struck = " and ".join(counted(count, target) for target, count in sorted(targets.items()))
    found = {
        "lost": certificate.lost,
        "doubled": certificate.doubled,
        "different": certificate.different,
    }
    verdict = "equal" if certificate.equal else "NOT equal"
    return (
        f"{counted(certificate.iterations, 'iteration')}, {struck} killed (seed {certificate.seed}): "
        f"{verdict}, " + ", ".join(f"{len(lines)} {name}" for name, lines in found.items())
    )


def _print(certified: Certified) -> None:
    found = certified.certificate
    lines = [
        *(f"lost: {line}" for line in found.lost),
        *(f"doubled: {line}" for line in found.doubled),
        *(f"different: {line}" for line in found.different),
        *(f"not promised: {line}" for line in found.not_promised),
    ]
    for line in lines[:_SHOWN]:
        print_line(line)
    if len(lines) > _SHOWN:
        print_line(f"{len(lines) - _SHOWN} more; --json has all")
    print_line(f"Run {found.run}, {certificate_line(found)}.")
    print_line(
        f"Compared: {counted(found.artifacts, 'artifact')}, {counted(found.files, 'file')}, "
        f"{bytes_text(found.bytes)}, of {counted(found.copies, 'copy', 'copies')}, in {found.seconds:.0f} s."
    )
    print_line(f"Certificate: artifact {certified.artifact_id[:12]}")
    if certified.kept is not None:
        print_line(f"The copies: {certified.kept}")


def _as_json(certified: Certified) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "equal": certified.certificate.equal,
        "artifact_id": certified.artifact_id,
        "kept": certified.kept and str(certified.kept),
        **asdict(certified.certificate),
    }

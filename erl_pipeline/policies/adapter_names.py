"""Which layers of a model an adapter changes, by their names alone: no model is needed."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from erl_pipeline.config.policy import LoraConfig
from storage.errors import ConfigError, InputError

WEIGHTS = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"


def adapted_layers(linear: Sequence[str], config: LoraConfig, model_type: str) -> list[str]:
    """The linear layers that are to be adapted, in the order of `linear`, which has all that can be.

    Raises `ConfigError` when a name in `config.target_modules` is the end of none.
    """
    if config.target_modules is None:
        return list(linear)
    for target in config.target_modules:
        if not _ending_in(linear, [target]):
            known = ", ".join(last_parts(linear))
            raise ConfigError(
                f"policy.lora.target_modules: {target} is no linear layer of a {model_type} that can be "
                f"adapted; it has {known}"
            )
    return _ending_in(linear, config.target_modules)


def last_parts(layers: Iterable[str]) -> tuple[str, ...]:
    """The last parts of the names, each once, in order."""
    return tuple(sorted({name.rpartition(".")[2] for name in layers}))


def require_same_adapter(
    folder: Path, found: tuple[int, float, Sequence[str]], config: LoraConfig, layers: Sequence[str]
) -> None:
    """Raise `ConfigError` where the adapter in a folder was not made with these settings, for these layers.
    `found` are its rank, its alpha and its layers."""
    rank, alpha, own = found
    if (rank, alpha, list(own)) != (config.rank, config.alpha, list(layers)):
        raise ConfigError(
            f"policy.lora: the adapter in {folder} has rank {rank}, alpha {alpha} and modules "
            f"{', '.join(last_parts(own))}; a run can continue from it only with these"
        )


def read_adapted_layers(
    folder: Path, linear: Sequence[str], config: LoraConfig, model_type: str
) -> list[str]:
    """The layers that the adapter in a folder changes, of a model whose linear layers are `linear`.

    Raises `InputError` when the folder holds no adapter, `ConfigError` when it was made with other settings.
    """
    if not (folder / SETTINGS).is_file():
        raise InputError(f"{folder} holds no adapter: it has no {SETTINGS}")
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    layers = _ending_in(linear, settings["target_modules"])
    wanted = adapted_layers(linear, config, model_type)
    require_same_adapter(folder, (settings["r"], settings["lora_alpha"], layers), config, wanted)
    return layers


def _ending_in(linear: Sequence[str], targets: Sequence[str]) -> list[str]:
    """The names that are one of the targets, or end in one."""
    return [name for name in linear if any(f".{name}".endswith(f".{target}") for target in targets)]

"""A weight transfer engine of vLLM that reads weights which lie in this machine's memory.

A server imports this module under its bare name, as the module of its worker extension: its interpreter need
not have this package. That happens in each worker before its model is loaded, and registers the engine. It
then answers vLLM's own requests: `/start_weight_update`, `/update_weights`, `/finish_weight_update`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "erl_shared_memory"


class Extension:
    """Named by `--worker-extension-cls`, so that workers import this module; adds nothing to them."""


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing has to be agreed upon."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """A folder with all weights of a model, as `*.safetensors`. Where these lack the output `head`, it is
    the tensor `tied_to`."""

    folder: str
    head: str
    tied_to: str | None = None


class SharedMemoryEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Loads the weights of a folder, all in one update."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        pass

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Raises before anything is changed where the files cannot be read, and afterwards where they lacked
        a weight: the model then has none that can be used."""
        model: Any = self.model
        needed = {name for name, _ in model.named_parameters()}
        weights = list(_weights(update_info))
        initialize_layerwise_reload(model)
        try:
            loaded: set[str] = model.load_weights(weights)
        finally:
            # Also after a failure: without it, the next update would begin with half of this one.
            finalize_layerwise_reload(model, self.model_config)  # type: ignore[no-untyped-call]
        if missing := sorted(needed - loaded):
            raise ValueError(f"{update_info.folder} lacks weights: {', '.join(missing)}")

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


def _weights(update: UpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight and its name. The tensors are views of the files, and stay valid when these are removed."""
    for file in _files(Path(update.folder)):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_tensor(name)
                yield name, tensor
                if name == update.tied_to:
                    yield update.head, tensor


def _files(folder: Path) -> list[Path]:
    """The files that the index names; without an index, all."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return sorted(folder.glob("*.safetensors"))
    placed: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return [folder / name for name in sorted(set(placed.values()))]


WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryEngine)

"""What a rank holds on its device, kept in host memory while others need the device."""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
from collections.abc import Iterable

import torch

from erl_pipeline.policies.hardware import release_cached_memory


class SleepingTensors:
    """Tensors that can give up their memory on a device, and get it back.

    Whole storages are emptied and filled again, so that all tensors that share one, such as the weights of a
    sharded model and their rows in an optimizer, still do so afterwards. The host memory is kept for the next
    time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: list[torch.Tensor] = []
        self._emptied: list[torch.UntypedStorage] = []

    def sleep(self, tensors: Iterable[torch.Tensor]) -> None:
        """Move what these tensors hold to host memory, and release the device's. They must not be used until
        `wake`. Does nothing if they sleep already."""
        if self._emptied:
            return
        found = [tensor.untyped_storage() for tensor in tensors if tensor.device == self._device]
        storages = list({each.data_ptr(): each for each in found if each.nbytes()}.values())
        if [each.nbytes() for each in storages] != [copy.nbytes for copy in self._copies]:
            self._copies.clear()  # before there are new ones
            pinned = self._device.type == "cuda"
            self._copies += [
                torch.empty(each.nbytes(), dtype=torch.uint8, pin_memory=pinned) for each in storages
            ]
        for storage, copy in zip(storages, self._copies, strict=True):
            copy.copy_(_bytes_of(storage))
            storage.resize_(0)
        self._emptied = storages
        release_cached_memory()

    def wake(self) -> None:
        """Give back what they held."""
        emptied, self._emptied = self._emptied, []
        for storage, copy in zip(emptied, self._copies, strict=False):  # none, where nothing sleeps
            storage.resize_(copy.nbytes)
            _bytes_of(storage).copy_(copy)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """All bytes of a storage; they share its memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)

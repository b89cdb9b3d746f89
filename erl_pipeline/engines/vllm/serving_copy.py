"""A checkpoint in a form that a running server can reload: with an output head of its own.

Some builds of vLLM (the CPU build) pack the output head into a layout of their own. When such a server
reloads a model with tied embeddings, it keeps the old head, and then samples from neither policy. So the
server is never told that they are tied: it gets the head as a tensor of its own, and reloads it like any
other. This costs the server the memory of one more embedding matrix.
"""

import json
import mmap
import shutil
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from erl_pipeline.engines.interface import OutputHead
from storage.errors import EngineError

_INDEX = "model.safetensors.index.json"
_HEAD_FILE = "output_head.safetensors"


@dataclass(frozen=True)
class ServingCopy:
    """The folder to serve a checkpoint from, which is written when a server first needs it.

    `place` is where `write_serving_copy` writes it, if the checkpoint cannot be served as it is.
    """

    checkpoint_folder: Path
    place: Path
    head: OutputHead
    _writing: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """The folder, which may not be there yet."""
        return self.checkpoint_folder if self.head.tied_to is None else self.place

    def write(self) -> Path:
        """The folder, whole. Raises as `write_serving_copy`."""
        with self._writing:
            if not self.folder.exists():
                beside = self.place.with_name(f".{self.place.name}")
                shutil.rmtree(beside, ignore_errors=True)
                write_serving_copy(self.checkpoint_folder, beside, self.head)
                beside.rename(self.place)
        return self.folder


def write_serving_copy(checkpoint_folder: Path, folder: Path, head: OutputHead) -> Path:
    """The folder to serve `checkpoint_folder` from: itself when its embeddings are not tied, else `folder`.

    `folder` is made. Its files are links to those of the checkpoint, except for a configuration that says
    the embeddings are not tied, and a file with the head, whose bytes are copied. Raises `EngineError` when
    the checkpoint lacks the embeddings.
    """
    if head.tied_to is None:
        return checkpoint_folder
    folder.mkdir(parents=True)
    for file in checkpoint_folder.iterdir():
        if file.name not in ("config.json", _INDEX):
            (folder / file.name).symlink_to(file.resolve())
    _copy_tensor(checkpoint_folder, head.tied_to, folder / _HEAD_FILE, head.name)
    untied = json.loads((checkpoint_folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    if "text_config" in untied:  # a model of text and images: a server asks its text part
        untied["text_config"]["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(untied))
    if (checkpoint_folder / _INDEX).exists():
        index = json.loads((checkpoint_folder / _INDEX).read_text())
        index["weight_map"][head.name] = _HEAD_FILE
        (folder / _INDEX).write_text(json.dumps(index))
    return folder


def _copy_tensor(checkpoint_folder: Path, name: str, target: Path, new_name: str) -> None:
    """Write the bytes of a checkpoint's tensor as a file of their own, under a new name."""
    for file in sorted(checkpoint_folder.glob("*.safetensors")):
        with file.open("rb") as source:
            length = int.from_bytes(source.read(8), "little")
            described: dict[str, Any] | None = json.loads(source.read(length)).get(name)
            if described is None:
                continue
            begin, end = described["data_offsets"]
            header = json.dumps({new_name: described | {"data_offsets": [0, end - begin]}}).encode()
            header += b" " * (-len(header) % 8)
            first = 8 + length + begin
            with (
                mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as content,
                memoryview(content) as whole,
                target.open("wb") as written,
            ):
                written.write(struct.pack("<Q", len(header)) + header)
                written.write(whole[first : first + end - begin])
            return
    raise EngineError(f"checkpoint {checkpoint_folder} lacks the tensors {name}")

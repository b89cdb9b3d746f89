"""Reading TensorBoard's event files back: framed protocol buffers, as TensorFlow's record format has them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog


def scalars(folder: Path) -> dict[tuple[str, int], list[float]]:
    """The values under each tag and step, in the order in which they were written, as TensorBoard shows them:
    a START event that is not the first removes values of its step and later steps that were read before."""
    found: dict[tuple[str, int], list[float]] = {}
    begun = False
    for file in sorted(folder.glob("events.*")):
        content, place = file.read_bytes(), 0
        while place < len(content):
            if len(content) - place < 16:
                break  # cut short by a kill
            (length,) = struct.unpack_from("<Q", content, place)
            if len(content) - place < 16 + length:
                break
            # Eight bytes of length and four of its checksum, the event, four of its checksum.
            event = Event.FromString(content[place + 12 : place + 12 + length])
            place += 16 + length
            if event.session_log.status == SessionLog.START:
                if begun:
                    found = {at: values for at, values in found.items() if at[1] < event.step}
                begun = True
            for value in event.summary.value:
                found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return found


def wandb_rows(folder: Path) -> list[dict[str, float]]:
    """The rows of the one offline run under a folder of wandb's, without wandb's own columns."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("offline-run-*/*.wandb")
    rows = []
    for content in _log_records(file.read_bytes()):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            rows.append(
                {name: json.loads(value) for name, value in items.items() if not name.startswith("_")}
            )
    return rows


def _log_records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 KiB, in which a record may be cut."""
    block, record = 32768, b""
    place = 7  # wandb's own header
    while place + 7 <= len(content):
        if block - place % block < 7:  # no space for a header: the block ends in zeros
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield record
            record = b""

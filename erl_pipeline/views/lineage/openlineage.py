"""Sending a run's lineage to a consumer of OpenLineage, by the official client."""

from __future__ import annotations

import os
import re
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from storage.artifacts.store import ArtifactStore
from storage.errors import InputError, PipelineError, store_errors
from storage.runs.run import Run

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

_ADDRESS = re.compile(r"[\w.-]+:\d+(/.*)?")
"""A host and a port without the scheme: a probable mistake of the user."""


class ExportError(PipelineError):
    """A consumer of lineage cannot be reached, or refuses an event."""


def export_run(store: ArtifactStore, run: Run, target: str, repository: str | None = None) -> int:
    """Send the events of a run, and return how many there were.

    Args:
        target: `http://` or `https://` URL of a consumer, to which `POST /api/v1/lineage` requests go, or
            the path of a file of JSON lines, which is written whole or not at all.

    Raises:
        InputError: the target is neither of these, or the extra `openlineage` is not installed.
        ExportError: the consumer cannot be reached or refuses an event.
        StoreError: an artifact is damaged, or the file cannot be written.
    """
    if find_spec("openlineage") is None:
        raise InputError("the OpenLineage client is not installed: pip install 'erl-pipeline[openlineage]'")
    if target.startswith(("http://", "https://")):
        return _send(store, run, target, repository)
    if "://" in target:
        raise InputError(f"--openlineage {target}: give an http:// or https:// URL, or a file.")
    if _ADDRESS.fullmatch(target):
        raise InputError(
            f"--openlineage {target}: an address begins with http:// or https://, such as http://{target}; "
            f"for a file of that name give ./{target}"
        )
    return _write(store, run, Path(target), repository)


def _send(store: ArtifactStore, run: Run, url: str, repository: str | None) -> int:
    import requests
    from openlineage.client import OpenLineageClient

    from erl_pipeline.views.lineage.events import run_events

    try:
        # The URL is given as configuration, so that the client's own settings may add an API key or
        # certificates.
        client = OpenLineageClient(config={"transport": {"type": "http", "url": url}})
    except ValueError as error:
        raise InputError(f"--openlineage {url}: {error}") from error
    _require_enabled(client)
    sent = 0
    try:
        for event in run_events(store, run, repository):
            client.emit(event)
            sent += 1
    except requests.RequestException as error:
        raise ExportError(
            f"{url} did not accept OpenLineage event {sent + 1} of run {run.name}: {error}. The events "
            "before it were accepted; exporting again sends them with the same ids."
        ) from error
    finally:
        client.close()
    return sent


def _write(store: ArtifactStore, run: Run, path: Path, repository: str | None) -> int:
    from openlineage.client import OpenLineageClient
    from openlineage.client.transport.file import FileConfig, FileTransport

    from erl_pipeline.views.lineage.events import run_events

    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    with store_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    client = OpenLineageClient(transport=FileTransport(FileConfig(str(temporary), append=True)))
    sent = 0
    try:
        _require_enabled(client)
        for event in run_events(store, run, repository):
            client.emit(event)
            sent += 1
        with store_errors("write", path):
            os.replace(temporary, path)
    except RuntimeError as error:  # The client's file transport raises it for disk errors.
        raise ExportError(str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)
    return sent


def _require_enabled(client: OpenLineageClient) -> None:
    """Raise InputError if the client is switched off: it would accept events and send none."""
    if client.transport.kind == "noop":
        raise InputError(
            "the OpenLineage client is switched off by OPENLINEAGE_DISABLED; unset it to export."
        )

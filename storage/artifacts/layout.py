"""Where everything of an artifact store lies.

Layout: `STORE/artifacts/<stage>/<artifact_id>/{manifest.json, files}`; in an object store the files lie one
folder deeper, see `upload_folder`. Artifacts that are set aside go to `STORE/damaged/`. In a local store,
artifacts that are being deleted go to `STORE/trash/`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import digest
from storage.filesystem import StoreRoot, list_names

TRASH = "trash"
"""Folder, in a local store, for artifacts that are being deleted."""


def upload_folder(manifest: Manifest) -> str:
    """Name of the folder that holds an artifact's files in an object store."""
    return digest([[entry.path, entry.sha256] for entry in manifest.files])[:16]


@dataclass(frozen=True)
class StoreLayout:
    """The paths of one store's artifacts."""

    root: StoreRoot

    @property
    def staging(self) -> Path:
        """Local folder for artifacts before they are committed and for downloads before they are complete."""
        return self.root.scratch / "staging"

    def of(self, stage: str, artifact_id: str, *parts: str) -> str:
        """fsspec's path of an artifact's folder, or of something in it."""
        return self.root.join("artifacts", stage, artifact_id, *parts)

    def files_of(self, manifest: Manifest) -> str:
        """fsspec's path of the folder in which an artifact's files lie."""
        folder = self.of(manifest.stage, manifest.artifact_id)
        return folder if self.root.local else f"{folder}/{upload_folder(manifest)}"

    def damaged(self, stage: str, artifact_id: str) -> str:
        """A new place for an artifact that is set aside."""
        return self.root.join("damaged", stage, f"{artifact_id}-{secrets.token_hex(4)}")

    def trash(self, artifact_id: str) -> Path:
        """A new place, in a local store, for an artifact that is being deleted."""
        return Path(self.root.join(TRASH, f"{artifact_id}-{secrets.token_hex(4)}"))

    def stages(self) -> Sequence[str]:
        """Names of the stages that have artifacts, sorted."""
        return list_names(self.root, self.root.join("artifacts"))

    def ids(self, stage: str) -> Sequence[str]:
        """Names of a stage's folders, sorted; a folder without a manifest is not an artifact."""
        return list_names(self.root, self.root.join("artifacts", stage))

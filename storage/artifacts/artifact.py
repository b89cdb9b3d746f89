"""A committed artifact, ready to be read."""

from __future__ import annotations

from pathlib import Path

from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.pruned import PrunedFile, PruneRecord, nothing_pruned
from storage.errors import InputError, PrunedFileError


class Artifact:
    """A committed artifact whose files were verified when it was opened."""

    def __init__(self, manifest: Manifest, folder: Path, pruned: PruneRecord | None = None) -> None:
        self.manifest = manifest
        self.pruned = pruned or nothing_pruned(manifest.artifact_id)
        self.present_folder = folder
        """The local folder of the files that are left after pruning."""

    @property
    def files(self) -> list[FileEntry]:
        """All files that were committed, also those that were pruned since."""
        return self.manifest.files

    @property
    def folder(self) -> Path:
        """The local folder with all files. Raises PrunedFileError if one of them was pruned."""
        for file in self.pruned.files:
            raise self._pruned(file)
        return self.present_folder

    def path(self, name: str) -> Path:
        """A local file or folder of the artifact, by its name in the manifest.

        Raises:
            InputError: the artifact does not have it.
            PrunedFileError: retention has pruned it, or a file of the folder.
        """
        for file in self.pruned.files:
            if file.path == name or file.path.startswith(name + "/"):
                raise self._pruned(file)
        if not any(entry.path == name or entry.path.startswith(name + "/") for entry in self.files):
            held = ", ".join(entry.path for entry in self.files) or "no files"
            artifact = f"artifact {self.manifest.artifact_id} ({self.manifest.stage})"
            raise InputError(f"{artifact} has no {name}; it has {held}.")
        return self.present_folder / name

    def rows_path(self, name: str) -> Path:
        """Path of a Parquet file; for a pruned one, path of the file with the columns that were kept.

        Raises InputError for a name that the artifact does not have.
        """
        pruned = self.pruned.of(name)
        if pruned is None or pruned.kept is None:
            return self.path(name)
        return self.present_folder / pruned.kept.path

    def _pruned(self, file: PrunedFile) -> PrunedFileError:
        where = "" if self.manifest.iteration is None else f", iteration {self.manifest.iteration}"
        fact = (
            f"{file.path} of artifact {self.manifest.artifact_id} ({self.manifest.stage}{where}) was "
            f"pruned on {file.pruned_at:%Y-%m-%d} by {file.reason}: its {file.bytes:,} bytes are gone"
        )
        advice = (
            "Choose a later iteration that still has it; or let `train`, `replay --set` or `evaluate` make "
            "it again, which they do when they read it."
        )
        return PrunedFileError(f"{fact}. {advice}", self.manifest.artifact_id, fact)

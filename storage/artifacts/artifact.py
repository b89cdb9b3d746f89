"""A committed artifact, ready to be read."""

from __future__ import annotations

from pathlib import Path

from storage.artifacts.manifest import FileEntry, Manifest
from storage.artifacts.pruned import ReleasedFile, ReleaseRecord, no_releases
from storage.errors import InputError, ReleasedFileError


class Artifact:
    """A committed artifact whose files were verified when it was opened."""

    def __init__(self, manifest: Manifest, folder: Path, releases: ReleaseRecord | None = None) -> None:
        self.manifest = manifest
        self.releases = releases or no_releases(manifest.artifact_id)
        self.present_folder = folder
        """The local folder of the files that are left, whether or not some were released."""

    @property
    def files(self) -> list[FileEntry]:
        """What was committed, whether or not it was released since."""
        return self.manifest.files

    @property
    def folder(self) -> Path:
        """The local folder of all files. Raises ReleasedFileError when one of them was released."""
        for file in self.releases.files:
            raise self._released(file)
        return self.present_folder

    def path(self, name: str) -> Path:
        """A local file or folder of the artifact, by its name in the manifest.

        Raises:
            InputError: the artifact does not have it.
            ReleasedFileError: retention has released it, or a file of the folder.
        """
        for file in self.releases.files:
            if file.path == name or file.path.startswith(name + "/"):
                raise self._released(file)
        if not any(entry.path == name or entry.path.startswith(name + "/") for entry in self.files):
            held = ", ".join(entry.path for entry in self.files) or "no files"
            artifact = f"artifact {self.manifest.artifact_id} ({self.manifest.stage})"
            raise InputError(f"{artifact} has no {name}; it has {held}.")
        return self.present_folder / name

    def rows_path(self, name: str) -> Path:
        """A Parquet file; of a released one the columns that were kept, in a file of the same table.

        Raises InputError for a name that the artifact does not have.
        """
        released = self.releases.of(name)
        if released is None or released.kept is None:
            return self.path(name)
        return self.present_folder / released.kept.path

    def _released(self, file: ReleasedFile) -> ReleasedFileError:
        where = "" if self.manifest.iteration is None else f", iteration {self.manifest.iteration}"
        return ReleasedFileError(
            f"{file.path} of artifact {self.manifest.artifact_id} ({self.manifest.stage}{where}) was "
            f"released on {file.released_at:%Y-%m-%d} by {file.reason}: its {file.bytes:,} bytes are gone. "
            "Take a younger iteration that has it, or make it again by training in another store."
        )

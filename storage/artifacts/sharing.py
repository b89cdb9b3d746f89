"""Files that an artifact has in common with one of its inputs: a local store keeps one copy for both.

They are hard links: each artifact has all its files, and either can be pruned or deleted by itself. Object
stores have no hard links; there the files are stored again.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

from storage.artifacts.artifact import Artifact
from storage.artifacts.manifest import Manifest
from storage.filesystem import sha256_file, store_errors

_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK})
"""Errors of a file system that has no hard links, or allows no more of them."""


def share_equal_files(folder: Path, manifest: Manifest, source: Artifact) -> None:
    """Replace files of a written folder by links to equal files, with the same names, of another artifact.

    The linked bytes are hashed again, so that no damage is taken over. If the file system has no links, the
    folder keeps its own files.
    """
    there = {(entry.path, entry.sha256) for entry in source.files if source.pruned.of(entry.path) is None}
    for entry in manifest.files:
        older, written = source.present_folder / entry.path, folder / entry.path
        if (entry.path, entry.sha256) not in there or sha256_file(older) != entry.sha256:
            continue
        beside = written.with_name(f".{written.name}.{secrets.token_hex(8)}")
        with store_errors("link", written):
            try:
                os.link(older, beside)
            except OSError as error:
                if error.errno in _WITHOUT_LINKS:
                    return
                raise
            beside.replace(written)

"""Keeps the experience that a worker read last, so that an iteration reads only what the previous one
added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from erl_pipeline.methods.exgrpo.experience import Experience, read_experience
from storage.artifacts.artifact import Artifact

if TYPE_CHECKING:
    from erl_pipeline.plan.resources import Resources


def kept_experience(resources: Resources, artifact: Artifact | None) -> Experience:
    """The experience of an artifact, with all that came before it; an empty one for None."""
    if artifact is None:
        return Experience()
    known: dict[str, Experience] = resources.keep("experience", dict)
    version = artifact.manifest.artifact_id
    with resources.store.staying():  # The experience keeps the paths of files.
        found = read_experience(resources.store, version, known)
    known.clear()
    known[version] = found
    return found

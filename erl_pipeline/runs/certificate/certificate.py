"""What a certificate says, and how it is stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal

from storage.artifacts.manifest import Manifest
from storage.artifacts.recipe import Recipe
from storage.artifacts.store import ArtifactStore
from storage.errors import StoreError
from storage.runs.run import Run

CERTIFY_RUN = "certify_run"
"""The name under which certificates are stored, as if a stage of this name made them."""

CERTIFICATE = "certificate.json"

Target = Literal["driver", "worker", "rank", "server"]
MomentKind = Literal["time", "before publication", "after publication"]


@dataclass(frozen=True)
class Kill:
    """One SIGKILL. `seconds` counts from the start of its copy, `at` is in UTC. `moment` is what was waited
    for, `interrupted` what the store then showed."""

    copy: int
    target: Target
    moment: MomentKind
    seconds: float
    at: str
    interrupted: str


@dataclass(frozen=True)
class Certificate:
    """How the killed copies of a run compare with the run.

    `artifacts`, `files` and `bytes` say how much was compared, over all copies. Four fields have a line for
    each case: `lost` for an artifact that a copy lacks; `doubled` for one that a copy computed twice, or that
    is not in the plan; `different` for one whose bytes or counters differ, or whose files are damaged; and
    `not_promised` for one that differs but whose bytes were never promised, or that was made from such an
    artifact.
    """

    run: str
    iterations: int
    seed: int
    runner: Mapping[str, Any]
    kills: tuple[Kill, ...]
    copies: int
    artifacts: int
    files: int
    bytes: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    different: tuple[str, ...]
    not_promised: tuple[str, ...]
    seconds: float
    code_version: str
    machine: Mapping[str, str | int]
    packages: Mapping[str, str]

    @property
    def equal(self) -> bool:
        """Whether nothing was lost, doubled or different."""
        return not (self.lost or self.doubled or self.different)

    def document(self) -> str:
        """The certificate as the JSON that its artifact holds."""
        return json.dumps(asdict(self), indent=1) + "\n"


def parse_certificate(document: str) -> Certificate:
    """A certificate from its JSON."""
    value = json.loads(document)
    lines = {name: tuple(value[name]) for name in ("lost", "doubled", "different", "not_promised")}
    return Certificate(**{**value, **lines, "kills": tuple(Kill(**kill) for kill in value["kills"])})


def commit_certificate(store: ArtifactStore, certificate: Certificate, checkpoint_id: str) -> str:
    """Put a certificate into the store of its run; return its id.

    A certificate records events that no recipe can repeat. So the digest of its content is part of its
    recipe: two certificates have the same id only if they say the same.

    Args:
        checkpoint_id: the last checkpoint of the run that was certified.
    """
    document = certificate.document()
    recipe = Recipe(
        CERTIFY_RUN,
        1,
        {
            "run": certificate.run,
            "iterations": certificate.iterations,
            "sha256": hashlib.sha256(document.encode()).hexdigest(),
        },
        {"checkpoint": checkpoint_id},
        certificate.seed,
        kind="certificate",
    )
    with store.create(recipe, run=certificate.run, iteration=None) as staging:
        (staging.path / CERTIFICATE).write_text(document, encoding="utf-8")
        staging.commit(
            counters={
                "kills": len(certificate.kills),
                "copies": certificate.copies,
                "artifacts": certificate.artifacts,
                "files": certificate.files,
                "lost": len(certificate.lost),
                "doubled": len(certificate.doubled),
                "different": len(certificate.different),
                "not_promised": len(certificate.not_promised),
            },
            metrics={"seconds": certificate.seconds},
            determinism="approximate",
        )
    return recipe.artifact_id


def find_certificates(store: ArtifactStore, run: Run) -> list[tuple[Manifest, Certificate]]:
    """The certificates of a run, the newest first. Certificates of an earlier run of the same name do not
    count."""
    checkpoints = {entry.artifact_id for entry in run.recorded() if entry.kind == "checkpoint"}
    found = []
    for artifact_id in store.ids(CERTIFY_RUN):
        # A damaged certificate certifies nothing.
        with suppress(StoreError):
            manifest = store.find(artifact_id, CERTIFY_RUN)
            if manifest is not None and checkpoints.issuperset(manifest.inputs.values()):
                document = store.open_file(manifest, CERTIFICATE).read_text(encoding="utf-8")
                found.append((manifest, parse_certificate(document)))
    return sorted(found, key=lambda each: each[0].finished_at, reverse=True)

"""Extras of installed distributions, and which of their packages are missing."""

from __future__ import annotations

import importlib.metadata

from packaging.requirements import Requirement


def missing_of_extra(distribution: str, extra: str) -> list[str]:
    """The requirements of an extra that are not installed, or installed in a wrong version; empty if `extra`
    is."""
    if not extra:
        return []
    try:
        requirements = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        f"{requirement.name}{requirement.specifier}"
        for requirement in map(Requirement, requirements)
        if requirement.marker is not None
        and requirement.marker.evaluate({"extra": extra})
        and not requirement.marker.evaluate({"extra": ""})
        and not _is_installed(requirement)
    ]


def _is_installed(requirement: Requirement) -> bool:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)

"""Checks of the containers that are possible where no container runs."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"
REFERENCE = re.compile(r"(?<!\$)\$\{([A-Z0-9_]+)(?::[-?][^}]*)?\}")
SECRET = re.compile(r"PASSWORD|SECRET|KEY")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    content = yaml.safe_load((INFRA / "compose.yaml").read_text())
    return dict(content["services"])


def tool(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_a_compose_file_follows_the_compose_specification(name: str) -> None:
    check = [tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(INFRA / name)]
    result = subprocess.run(check, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_dockerfile_pleases_its_linter() -> None:
    result = subprocess.run(
        [tool("hadolint"), str(INFRA / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


def test_the_images_user_can_write_where_prefect_copies_its_page() -> None:
    """By default that is the folder of the package, which is root's: then there is no page."""
    text = (INFRA / "Dockerfile").read_text()
    (folder,) = re.findall(r"PREFECT_UI_STATIC_DIRECTORY=(\S+)", text)
    assert folder in re.findall(r"chown 1000 (.*)", text)[0].split()


def test_all_that_the_program_and_its_tests_need_has_a_version_in_the_constraints() -> None:
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    needed: set[str] = set()
    waiting = [("erl-pipeline", frozenset({"test"}))]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        try:
            requirements = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        needed.add(canonicalize_name(name))
        for each in map(Requirement, requirements):
            chosen = each.marker is None or any(each.marker.evaluate({"extra": one}) for one in {"", *extras})
            found = each.name, frozenset(each.extras)
            if chosen and found not in seen:
                seen.add(found)
                waiting.append(found)
    assert len(needed) > 200
    # What builds packages is no part of what runs.
    assert sorted(needed - pinned - {"erl-pipeline", "setuptools"}) == []


def test_what_the_dockerfile_copies_is_there_and_let_through() -> None:
    let_through = {
        line.removeprefix("!")
        for line in (INFRA / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for line in (INFRA / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
        for source in line.split()[1:-1]
    }
    assert copied == let_through
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_only_this_machine_reaches_a_published_port(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
    assert "ports" not in services["vllm"]  # its development interface accepts new weights from everyone


def test_no_secret_stands_in_a_file_and_each_is_asked_for(services: dict[str, Any]) -> None:
    settings = {
        (name, key): str(value)
        for name, service in services.items()
        for key, value in service.get("environment", {}).items()
    }
    secrets = {place: value for place, value in settings.items() if SECRET.search(place[1])}
    assert len(secrets) >= 6
    assert [place for place, value in secrets.items() if not REFERENCE.fullmatch(value)] == []
    example = dict(
        line.split("=", 1)
        for line in (INFRA / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    asked_for = set(REFERENCE.findall((INFRA / "compose.yaml").read_text()))
    assert asked_for == set(example)
    assert [name for name, value in example.items() if SECRET.search(name) and value] == []


def test_services_and_volumes_that_are_named_exist(services: dict[str, Any]) -> None:
    volumes = yaml.safe_load((INFRA / "compose.yaml").read_text())["volumes"]
    mounted = {
        source
        for service in services.values()
        for source in (volume.split(":")[0] for volume in service.get("volumes", []))
        if not source.startswith((".", "$"))
    }
    needed = {name for service in services.values() for name in service.get("depends_on", {})}
    assert mounted == set(volumes)
    assert needed <= set(services)
    assert (INFRA / "prometheus.yaml").exists()
    scraped = yaml.safe_load((INFRA / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"]
    port = services["worker"]["ports"][0].split(":")[1]
    assert scraped == [{"targets": [f"worker:{port}"]}]

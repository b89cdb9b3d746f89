"""Checks of the containers that are possible where no container runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

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

"""Settings of the runner `prefect_workers`, and what is refused before anything is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from flows.prefect_workers.settings import PrefectWorkersConfig

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("address", ["10.0.0.1:7070", "driver.example:7070", "[::1]:7070", "127.0.0.1:0"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert PrefectWorkersConfig(work_pool="stages", address=address).address == address


@pytest.mark.parametrize("address", ["auto", "driver", "http://driver:7070", "10.0.0.1:"])
def test_other_addresses_are_refused_with_what_is_allowed(address: str) -> None:
    with pytest.raises(ValidationError, match=r"allowed is HOST:PORT, such as 10\.0\.0\.1:29500"):
        PrefectWorkersConfig(work_pool="stages", address=address)


def test_pool_and_address_must_be_given() -> None:
    with pytest.raises(ValidationError, match=r"(?s)work_pool.*Field required.*address.*Field required"):
        PrefectWorkersConfig.model_validate({})


def test_the_plug_in_is_found_without_importing_prefect() -> None:
    code = (
        "import sys, flows.prefect_workers.runner, flows.prefect_workers.attendance; "
        "print([each for each in ('prefect', 'torch') if each in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

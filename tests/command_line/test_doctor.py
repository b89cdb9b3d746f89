from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line.doctor import checks
from command_line.doctor.checks import check_torch_companions
from storage.artifacts.manifest import installed_versions
from tests.command_line.invoke import invoke

ROOT = Path(__file__).parents[2]


def test_the_doctor_tells_what_this_machine_can_run(tmp_path: Path) -> None:
    result = invoke("doctor", "--store", tmp_path, "--json")
    assert result.status == 0, result.output
    findings = {finding["subject"]: finding for finding in result.json["findings"]}
    assert result.json["can_run"] is True
    assert findings["embedding model"]["found"].startswith("all-MiniLM-L6-v2, 384 dimensions")
    assert {
        "Python",
        "packages",
        "torch",
        "memory",
        "transformers",
        "vLLM",
        "store, locks",
    } <= set(findings)
    assert all(finding["advice"] or finding["verdict"] == "ok" for finding in findings.values())


def test_a_problem_is_exit_status_1_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "DEFAULT_RUN_BYTES", 1e18)
    result = invoke("doctor", "--store", tmp_path)
    assert result.status == 1
    assert "disk: the default configuration needs 1,000,000,000.0 GB: free some space" in result.output
    assert result.output.endswith("The default configuration cannot run here.\n")


def test_an_interpreter_that_cannot_be_asked_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    result = invoke("doctor", "--store", tmp_path, "--executable", tmp_path / "python")
    assert result.status == 2
    assert "is no Python interpreter" in result.errors


def test_a_companion_of_another_build_is_found_and_named_and_vllm_is_not_imported(tmp_path: Path) -> None:
    # The error of PyPI's torchvision together with the CPU build of torch.
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    metadata = tmp_path / "torchvision-0.28.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    code = (
        "import sys; from command_line.doctor.diagnosis import diagnose; "
        f"found = {{each.subject: each for each in diagnose({str(tmp_path)!r})}}; "
        "print(found['transformers'].found); print(found[sys.argv[1]].verdict); "
        "print('vllm' in sys.modules, 'prefect' in sys.modules)"
    )
    companions = check_torch_companions({"torch": "2.13.0", "torchvision": "0.28.0"})
    assert companions is not None
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    output = subprocess.check_output(
        [sys.executable, "-c", code, companions.subject], text=True, cwd=ROOT, env=environment
    )
    broken, trap, imported = output.splitlines()
    assert broken == "cannot be imported: RuntimeError: operator torchvision::nms does not exist"
    assert trap == ("problem" if installed_versions(["torch"])["torch"].endswith("+cpu") else "ok")
    assert imported == "False False"

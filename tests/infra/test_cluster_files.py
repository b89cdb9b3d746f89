"""Checks of the files for Kubernetes and SLURM that are possible where neither runs."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prefect.settings import (
    PREFECT_SERVER_API_HOST,
    PREFECT_SERVER_API_PORT,
    PREFECT_UI_API_URL,
    get_current_settings,
    temporary_settings,
)

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "infra" / "kubernetes"
SLURM = ROOT / "infra" / "slurm" / "train.sh"
VERSION = "1.33"
KUBERAY = json.loads((Path(__file__).parent / "kuberay.json").read_text())
NAMESPACE = "erl-pipeline"

Resource = dict[str, Any]


def resources() -> list[Resource]:
    files = sorted(KUBERNETES.glob("*.yaml"))
    return [resource for file in files for resource in yaml.safe_load_all(file.read_text())]


def pods() -> Iterator[tuple[str, Resource]]:
    """The pod template of everything that makes pods, by its name."""
    for resource in resources():
        name, spec = resource["metadata"]["name"], resource.get("spec", {})
        if resource["kind"] == "RayCluster":
            yield f"{name} head", spec["headGroupSpec"]["template"]
            for group in spec["workerGroupSpecs"]:
                yield f"{name} {group['groupName']}", group["template"]
        elif "template" in spec:
            yield name, spec["template"]


@pytest.mark.parametrize(
    "resource", resources(), ids=lambda each: f"{each['kind']} {each['metadata']['name']}"
)
def test_a_resource_follows_its_schema(resource: Resource) -> None:
    if resource["kind"] in KUBERAY:
        jsonschema.validate(resource, KUBERAY[resource["kind"]])
    else:
        kubernetes_validate.validate(resource, VERSION, strict=True)


@pytest.mark.parametrize("name", [name for name, _ in pods()])
def test_the_pods_of_a_resource_follow_their_schema(name: str) -> None:
    template = dict(pods())[name]
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "checked"}, "template": template}
    kubernetes_validate.validate(pod, VERSION, strict=True)


def test_a_wrong_key_would_be_found() -> None:
    [cluster] = [each for each in resources() if each["kind"] == "RayCluster"]
    cluster["spec"]["workerGroupSpecs"][0]["replica"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(cluster, KUBERAY["RayCluster"])


def test_what_is_named_is_there() -> None:
    found = resources()
    names = {(each["kind"], each["metadata"]["name"]) for each in found}
    assert {each["metadata"]["namespace"] for each in found if each["kind"] != "Namespace"} == {NAMESPACE}
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, pod in pods()
        for volume in pod["spec"].get("volumes", [])
        if "persistentVolumeClaim" in volume
    }
    assert {("PersistentVolumeClaim", claim) for claim in claims} <= names
    for _, pod in pods():
        [container] = pod["spec"]["containers"]
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert {volume["name"] for volume in pod["spec"].get("volumes", [])} <= mounts
    for each in found:
        if each["kind"] == "Service":
            labels = [pod.get("metadata", {}).get("labels", {}) for _, pod in pods()]
            assert any(each["spec"]["selector"].items() <= one.items() for one in labels)
    [job] = [each for each in found if each["kind"] == "RayJob"]
    assert ("RayCluster", job["spec"]["clusterSelector"]["ray.io/cluster"]) in names


def test_secrets_are_named_and_never_written() -> None:
    for name, pod in pods():
        for container in pod["spec"]["containers"]:
            for variable in container.get("env", []):
                if re.search(r"PASSWORD|SECRET|KEY", variable["name"]):
                    assert "secretKeyRef" in variable["valueFrom"], (name, variable["name"])
    assert "Secret" not in {each["kind"] for each in resources()}


def test_workers_of_ray_have_the_key_of_the_vllm_servers() -> None:
    """A worker reads `engine.api_key_variable` from its own environment."""

    def variables(pod: Resource) -> dict[str, Any]:
        [container] = pod["spec"]["containers"]
        return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}

    made = {name: variables(pod) for name, pod in pods() if "vllm" in name or "erl-pipeline " in name}
    assert sorted(made) == ["erl-pipeline gpu", "erl-pipeline head", "vllm"]
    keys = [each["VLLM_API_KEY"]["secretKeyRef"] for each in made.values()]
    assert {(key["name"], key["key"]) for key in keys} == {("erl-pipeline", "vllm-api-key")}
    compose = yaml.safe_load((ROOT / "infra" / "compose.yaml").read_text())["services"]["vllm"]["environment"]
    for server in (made["vllm"], compose):
        assert server["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "75"


def test_a_restarted_prefect_server_knows_the_slots_that_it_gave() -> None:
    """By default it keeps them in memory, and no slot that was taken would ever be free again."""
    [server] = dict(pods())["prefect"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in server["env"]}
    folder = "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"
    assert variables[folder] == "prefect.server.concurrency.lease_storage.filesystem"
    assert variables["PREFECT_HOME"] in [mount["mountPath"] for mount in server["volumeMounts"]]


def prefects_servers() -> dict[str, tuple[list[str], str, dict[str, str], str]]:
    """Command, host name and variables of the containers with Prefect's server, and the URL for workers."""
    services = yaml.safe_load((ROOT / "infra" / "compose.yaml").read_text())["services"]
    one, worker = services["server"], services["worker"]["environment"]
    pod = dict(pods())["prefect"]["spec"]
    [server] = pod["containers"]
    [head] = dict(pods())["erl-pipeline head"]["spec"]["containers"]
    variables, of_worker = (
        {each["name"]: each.get("value", "") for each in container["env"]} for container in (server, head)
    )
    return {
        "compose": (
            one["command"],
            one["hostname"],
            one["environment"],
            worker["PREFECT_API_URL"],
        ),
        "kubernetes": (server["command"], pod["hostname"], variables, of_worker["PREFECT_API_URL"]),
    }


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_prefects_server_answers_workers_and_its_page_and_no_page_of_another_site(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.server_process import own_places

    command, hostname, variables, url = prefects_servers()[where]
    assert command == ["python", "-m", "flows.server_process"]
    monkeypatch.setattr(socket, "gethostname", lambda: hostname)
    names = {
        PREFECT_SERVER_API_HOST: variables["PREFECT_SERVER_API_HOST"],
        PREFECT_SERVER_API_PORT: variables["PREFECT_SERVER_API_PORT"],
        PREFECT_UI_API_URL: variables["PREFECT_UI_API_URL"],
    }
    with temporary_settings(names):
        own, place = own_places(), get_current_settings().server.api
        assert (place.host, place.port) == ("0.0.0.0", urlsplit(url).port)
        asked = urlsplit(get_current_settings().server.ui.api_url or "").netloc
    for host in (urlsplit(url).netloc, "127.0.0.1:4200", "10.1.2.3:4200"):
        assert own.has_host(host)
    assert not own.has_host("other.example:4200")
    assert own.has_page("http://localhost:4200", asked)
    assert not own.has_page("https://other.example", asked)


def test_every_pod_says_what_memory_it_may_take() -> None:
    limits = [
        container["resources"]["limits"] for _, pod in pods() for container in pod["spec"]["containers"]
    ]
    assert len(limits) == 5
    assert all("memory" in each for each in limits)


def test_rays_object_store_fits_into_shared_memory() -> None:
    """A larger one would be on the disk, as Ray does it by itself where memory is larger than /dev/shm."""
    [cluster] = [each for each in resources() if each["kind"] == "RayCluster"]
    head, workers = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    for group in (head, *workers):
        [shared] = [
            each["emptyDir"]["sizeLimit"]
            for each in group["template"]["spec"]["volumes"]
            if each["name"] == "shared-memory"
        ]
        assert shared == "2Gi"
        assert int(group["rayStartParams"]["object-store-memory"]) < 2 * 2**30


def test_the_slurm_script_pleases_its_linter() -> None:
    linter = Path(sys.executable).with_name("shellcheck")
    result = subprocess.run([linter, SLURM], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_slurm_script_asks_for_a_configuration() -> None:
    result = subprocess.run(["bash", SLURM], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "CONFIG --store FOLDER" in result.stderr


def test_the_entry_point_of_the_run_is_a_command_of_this_program() -> None:
    [job] = [each for each in resources() if each["kind"] == "RayJob"]
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["erl-pipeline", "train"]
    mounted = {
        mount["mountPath"]
        for _, pod in pods()
        for mount in pod["spec"]["containers"][0].get("volumeMounts", [])
    }
    assert {str(Path(words[2]).parent), words[-1]} <= mounted

"""What the killed driver of a run left behind, which Prefect would show as running for ever."""

from __future__ import annotations

from typing import Any

from prefect.client.orchestration import SyncPrefectClient

from flows.orphans import AT_WORK

FLOW = "training"
"""The flow of the flow runs that drivers begin by themselves."""


def end_left_behind(client: SyncPrefectClient, tag: str, flow_run_id: str, message: str) -> None:
    """Set to crashed what an ended process of a run left as running.

    That is: flow runs of `FLOW`, and unfinished task runs of any flow run. A flow run of another flow belongs
    to a Prefect worker, and `flows.orphans` starts it again.

    Args:
        tag: the tag that all flow runs of the run have, and no others; the run has to be locked.
        flow_run_id: the flow run that works on the run now; it has not reported any task run yet.

    Raises httpx.HTTPError when the server cannot be reached or refuses.
    """
    state = {"type": "CRASHED", "name": "Crashed", "message": message}
    at_work = {"state": {"type": {"any_": [each.value for each in AT_WORK]}}}
    tagged = {"tags": {"all_": [tag]}}
    others = {"flow_runs": {**tagged, **at_work, "id": {"not_any_": [flow_run_id]}}}
    for kind, asked in (
        ("task_runs", {"flow_runs": tagged, "task_runs": at_work}),
        ("flow_runs", {**others, "flows": {"name": {"any_": [FLOW]}}}),
    ):
        for found in _post(client, f"/{kind}/filter", asked):
            _post(client, f"/{kind}/{found['id']}/set_state", {"state": state, "force": True})


def add_tag(client: SyncPrefectClient, tag: str, flow_run_id: str) -> None:
    """Add a tag to a flow run. Raises httpx.HTTPError when the server cannot be reached or refuses."""
    path: Any = f"/flow_runs/{flow_run_id}"
    tags = client.request("GET", path).raise_for_status().json()["tags"]
    if tag not in tags:
        client.request("PATCH", path, json={"tags": [*tags, tag]}).raise_for_status()


def _post(client: SyncPrefectClient, path: Any, content: Any) -> Any:
    return client.request("POST", path, json=content).raise_for_status().json()

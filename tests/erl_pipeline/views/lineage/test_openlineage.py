"""Export by the official client, to a real HTTP consumer and to a file.

The client does not contain the official JSON schemas. So the consumer rebuilds each event and facet with the
client's own generated classes, which know their fields; this project's own facets are checked against the
schemas that are shipped with them.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attr
import jsonschema
import pytest
from openlineage.client import generated
from openlineage.client.generated import base

from erl_pipeline.views.lineage import events as facets
from erl_pipeline.views.lineage.events import execution_id, namespace
from erl_pipeline.views.lineage.openlineage import ExportError, export_run
from storage.errors import InputError, StoreError
from tests.histories import History, write_history

OWN = ("PolicyVersionDatasetFacet", "MemoryVersionDatasetFacet", "RowCountsDatasetFacet", "StageRunFacet")


def facet_schema(name: str) -> dict[str, Any]:
    folder = Path(facets.__file__).parent / "facet_schemas"
    schema: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return schema


def facet_classes() -> dict[str, type]:
    """The client's facet classes and this project's own, by the URL of their schema."""
    modules = [
        importlib.import_module(f"{generated.__name__}.{found.name}")
        for found in pkgutil.iter_modules(generated.__path__)
    ]
    classes = [
        value
        for module in [*modules, facets]
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base.BaseFacet)
    ]
    return {found._get_schema(): found for found in classes}


def require_fields(given: dict[str, Any], kind: type) -> None:
    """Check the fields of an attrs class: all fields without a default are given, and no unknown ones."""
    known = {field.name: field for field in attr.fields(kind)}
    assert set(given) <= set(known), f"{kind.__name__} does not know {set(given) - set(known)}"
    required = {name for name, field in known.items() if field.default is attr.NOTHING}
    assert required <= set(given), f"{kind.__name__} lacks {required - set(given)}"


def require_event(event: dict[str, Any], classes: dict[str, type]) -> None:
    """Check that an event and each of its facets fit the client's classes."""
    require_fields(event, base.RunEvent)
    require_fields(event["run"], base.Run)
    require_fields(event["job"], base.Job)
    base.RunEvent(  # the classes check the format of times and ids
        eventTime=event["eventTime"],
        eventType=base.EventType(event["eventType"]),
        run=base.Run(event["run"]["runId"]),
        job=base.Job(event["job"]["namespace"], event["job"]["name"]),
        producer=event["producer"],
    )
    held = [event["run"]["facets"], event["job"]["facets"]]
    for name, kind in (("inputs", base.InputDataset), ("outputs", base.OutputDataset)):
        for dataset in event[name]:
            require_fields(dataset, kind)
            held += [dataset["facets"], dataset.get("inputFacets", {}), dataset.get("outputFacets", {})]
    for facet in [facet for group in held for facet in group.values()]:
        facet_class = classes[facet["_schemaURL"]]
        require_fields(facet, facet_class)
        name = facet_class.__name__
        if name in OWN:
            jsonschema.validate(facet, facet_schema(name))


class Consumer:
    """A server that takes events like Marquez, and refuses anything else with status 400."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.refused: list[str] = []
        classes, consumer = facet_classes(), self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/api/v1/lineage"
                event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    require_event(event, classes)
                except Exception as error:
                    consumer.refused.append(repr(error))
                    self.send_response(400)
                else:
                    consumer.events.append(event)
                    self.send_response(201)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Consumer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def consumed(history: History) -> Iterator[Consumer]:
    with Consumer() as consumer:
        try:
            sent = export_run(history.store, history.base, consumer.url, "https://example.org/code.git")
        finally:
            assert consumer.refused == []
        assert sent == len(consumer.events)
        yield consumer


def completed(consumer: Consumer, history: History, name: str) -> dict[str, Any]:
    artifact = history.store.open(history.ids[name])
    run = execution_id(
        f"{namespace(history.store.uri)}/artifacts/{artifact.manifest.stage}/{artifact.manifest.artifact_id}"
    )
    (event,) = [
        event
        for event in consumer.events
        if event["run"]["runId"] == run and event["eventType"] == "COMPLETE"
    ]
    return event


def test_every_artifact_has_a_start_and_a_complete_in_the_order_of_time(
    history: History, consumed: Consumer
) -> None:
    assert len(consumed.events) == 2 * (len(history.ids) - 1)  # all artifacts but those of the other run
    kinds: dict[str, list[str]] = {}
    for event in consumed.events:
        kinds.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert set(map(tuple, kinds.values())) == {("START", "COMPLETE")}
    times = [event["eventTime"] for event in consumed.events]
    assert times == sorted(times)


def test_inputs_and_outputs_are_datasets_of_the_store(history: History, consumed: Consumer) -> None:
    event = completed(consumed, history, "shard-2")
    assert event["job"]["name"] == "base.rollout_shard"
    assert event["job"]["namespace"] == namespace(history.store.uri)
    assert {dataset["name"] for dataset in event["inputs"]} == {
        f"fine_tune/{history.ids['tuned']}",
        f"index_memory/{history.ids['memory']}",
    }
    (output,) = event["outputs"]
    assert output["name"] == f"rollout_shard/{history.ids['shard-2']}"
    statistics = output["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["fileCount"]) == (3, 1)
    manifest = history.store.find(history.ids["shard-2"])
    assert manifest is not None
    assert statistics["size"] == manifest.files[0].bytes
    columns = {field["name"]: field["type"] for field in output["facets"]["schema"]["fields"]}
    assert columns["reward"] == "float"
    assert columns["prompt_token_ids"].startswith("list<")


def test_policy_memory_and_row_counts_have_facets_of_their_own(history: History, consumed: Consumer) -> None:
    (rollouts,) = completed(consumed, history, "shard-2")["outputs"]
    assert rollouts["facets"]["erlPipeline_policyVersion"]["policyVersion"] == history.ids["tuned"]
    assert rollouts["facets"]["erlPipeline_policyVersion"]["isPolicy"] is False
    assert rollouts["facets"]["erlPipeline_memoryVersion"]["memoryVersion"] == history.ids["memory"]
    assert rollouts["facets"]["erlPipeline_rowCounts"]["tables"] == {"trajectories": 3}
    (policy,) = completed(consumed, history, "tuned")["outputs"]
    assert policy["facets"]["erlPipeline_policyVersion"]["isPolicy"] is True
    assert "erlPipeline_memoryVersion" not in policy["facets"]
    (memory,) = completed(consumed, history, "memory")["outputs"]
    assert memory["facets"]["erlPipeline_memoryVersion"]["isMemory"] is True


def test_the_run_says_what_code_made_it_and_where_that_is(history: History, consumed: Consumer) -> None:
    event = completed(consumed, history, "scores")
    manifest = history.store.find(history.ids["scores"])
    assert manifest is not None
    stage = event["run"]["facets"]["erlPipeline_stage"]
    assert (stage["stage"], stage["iteration"], stage["trainingRun"]) == ("evaluate", 1, "base")
    assert stage["codeVersion"] == manifest.code_version
    assert stage["metrics"] == {"greedy_success": 0.25}
    location = event["job"]["facets"]["sourceCodeLocation"]
    assert (location["repoUrl"], location["version"]) == (
        "https://example.org/code.git",
        manifest.code_version,
    )


def test_the_consumer_of_this_test_does_refuse_what_is_no_event(consumed: Consumer) -> None:
    event = json.loads(json.dumps(consumed.events[-1]))
    classes = facet_classes()
    require_event(event, classes)
    event["run"]["facets"]["erlPipeline_stage"]["seed"] = "zero"
    with pytest.raises(jsonschema.ValidationError):
        require_event(event, classes)
    event["run"]["runId"] = "not a UUID"
    with pytest.raises(ValueError, match="badly formed"):
        require_event(event, classes)


def test_a_file_gets_the_same_events_and_is_replaced_whole(
    history: History, consumed: Consumer, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "events.jsonl"
    for _ in range(2):
        assert export_run(history.store, history.base, str(file), "https://example.org/code.git") > 0
    assert [json.loads(line) for line in file.read_text().splitlines()] == consumed.events
    assert [path.name for path in file.parent.iterdir()] == ["events.jsonl"]


def test_a_refusal_names_the_event_and_keeps_the_status(history: History) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(403)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ExportError, match=r"did not accept OpenLineage event 1 of run base: 403"):
            export_run(history.store, history.base, url)
    finally:
        server.shutdown()
        server.server_close()


def test_bad_targets_are_refused(history: History, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give an http:// or https:// URL, or a file"):
        export_run(history.store, history.base, "kafka://broker")
    with pytest.raises(InputError, match="--openlineage http://"):
        export_run(history.store, history.base, "http://")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"a file is in the way|a part of the path is a file"):
        export_run(history.store, history.base, str(tmp_path / "file" / "events.jsonl"))


def test_an_api_key_of_the_clients_own_settings_is_sent(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []

    class Listening(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys.append(self.headers["Authorization"])
            self.send_response(201)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            return

    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__AUTH", '{"type": "api_key", "apiKey": "secret"}')
    server = ThreadingHTTPServer(("127.0.0.1", 0), Listening)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        export_run(history.store, history.branch, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert set(keys) == {"Bearer secret"}


def test_a_client_that_is_switched_off_is_no_export(
    history: History, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    for target in ("http://127.0.0.1:9", str(tmp_path / "events.jsonl")):
        with pytest.raises(InputError, match="switched off by OPENLINEAGE_DISABLED"):
            export_run(history.store, history.base, target)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_ends_the_export_and_leaves_no_file(tmp_path: Path) -> None:
    history = write_history(str(tmp_path / "store"))
    victim = next((tmp_path / "store" / "artifacts").glob("rollout_shard/*/trajectories.parquet"))
    content = bytearray(victim.read_bytes())
    content[50] ^= 1
    victim.write_bytes(content)
    target = tmp_path / "out" / "events.jsonl"
    with pytest.raises(StoreError, match="is damaged"):
        export_run(type(history.store)(history.store.uri), history.base, str(target))
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("name", OWN)
def test_the_shipped_schemas_are_schemas_and_are_named_by_the_facets(name: str) -> None:
    schema = facet_schema(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    url, _, place = facets.schema_url(name).partition("#")
    assert schema["$id"] == url
    assert place == f"/$defs/{name}"
    assert name in schema["$defs"]

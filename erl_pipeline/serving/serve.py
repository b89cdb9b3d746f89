"""Serving a run's checkpoint, from its first look at the store until it is asked to stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from erl_pipeline.config.run import RunConfig
from erl_pipeline.plan.stage import Listener
from erl_pipeline.runs.config import readable_config
from erl_pipeline.runs.state import current_checkpoint
from erl_pipeline.serving.aliases import Canary, ServedAliases
from erl_pipeline.serving.answering import PolicyService
from erl_pipeline.serving.keys import read_keys
from erl_pipeline.serving.known import KnownTraffic
from erl_pipeline.serving.notes import NoteSearch, prompts_with_notes, run_memory_search
from erl_pipeline.serving.policies import StoredPolicies, require_several_models
from erl_pipeline.serving.server import PolicyServer
from erl_pipeline.serving.settings import ServingSettings
from erl_pipeline.serving.writing import LogWriter
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import Run, RunStore
from storage.serving.aliases import AliasChange, change_alias, current_aliases
from storage.serving.traffic import ReadTraffic, TrafficLog, read_traffic, segments
from storage.serving.users import user_key

_LOOK_SECONDS = 0.2
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Serving:
    """What is served, and where: port 0 is any free one."""

    store_uri: str
    run: str
    settings: ServingSettings
    alias: str = "production"
    canary: Canary | None = None
    host: str = "127.0.0.1"
    port: int = 0


def serve_policy(serving: Serving, stop: threading.Event, tell: Tell) -> None:
    """Serve until `stop` is set; then calls under way are ended, and the log is closed.

    `tell` shows people one line.

    Raises:
        InputError: no such run, a run without a checkpoint, a store that is not local, or an address that
            cannot be listened on.
        ConfigError: keys or settings that cannot be used, or settings of another version.
        DamagedRecord: the log, or the aliases, are not as they were written.
        RunBusy: the alias has to be entered, and the run is being worked on.
        Interrupted: `stop` was set before anything was served.
    """
    run = RunStore(serving.store_uri).open(serving.run)
    config = readable_config(run)
    if serving.canary is not None:
        require_several_models(config, serving.canary.alias)
    keys, new_key = read_keys(serving.settings.keys_file)
    changes = _aliases(serving, run, config)
    found = ReadTraffic()
    traffic = KnownTraffic(read_traffic(segments(serving.store_uri, serving.run), found))
    if found.torn:
        tell(f"{found.torn} records of the log were cut short when a server was killed; they do not count.")
    with ExitStack() as stack:
        # An engine that starts is stopped at once. One that serves is needed until the last call has ended.
        engine_stop = stack.enter_context(_until_serving(stop))
        stored = stack.enter_context(
            StoredPolicies(config, serving.store_uri, engine_stop.event, _TellWarnings(tell))
        )
        notes = _notes(serving, config, stored, tell)
        if notes is not None:
            stack.callback(notes.close)
        opened = [stored.open(change) for change in changes]
        for policy in opened:
            tell(f"Serving:      {policy.change.alias}, checkpoint {policy.checkpoint_id}")
        engine_stop.is_serving = True
        log = TrafficLog(serving.store_uri, serving.run)
        stack.callback(log.close)
        service = PolicyService(
            serving.settings,
            config.sampling,
            ServedAliases(
                serving.store_uri, serving.run, serving.alias, serving.canary, opened, stored.open, tell
            ),
            traffic,
            LogWriter(log, serving.settings.log, tell),
            user_key(serving.store_uri, serving.run),
            notes,
        )
        if new_key is not None:
            tell(f"Key:          {new_key}    # until this server ends; keys_file names lasting ones")

        async def serve() -> None:
            async with PolicyServer(service, keys, serving.run).listening(serving.host, serving.port) as url:
                tell(f"OpenAI's API: {url}/v1")
                tell(f"Log:          {log.path}")
                await _until_stopped(service, stop)

        # Where an engine has an event loop of its own, answers arrive in that.
        engine = opened[0].engine
        if engine is None:
            asyncio.run(serve())
        else:
            engine.run(serve())


async def _until_stopped(service: PolicyService, stop: threading.Event) -> None:
    """Follow the aliases and write the log until `stop` is set and the last call has ended."""
    beside = [
        asyncio.create_task(service.aliases.watch()),
        asyncio.create_task(service.log.flush_forever()),
    ]
    try:
        while not stop.is_set():
            ended, _ = await asyncio.wait(beside, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # They only end by an error.
        await service.stop()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


def _aliases(serving: Serving, run: Run, config: RunConfig) -> list[AliasChange]:
    """What the served aliases mean. The first one gets the run's latest checkpoint where it means nothing."""
    changes = current_aliases(serving.store_uri, serving.run)
    if serving.alias not in changes:
        latest = current_checkpoint(ArtifactStore(serving.store_uri), run, config)
        if latest is None:
            raise InputError(f"run {run.name} has no checkpoint yet; train it first")
        with run.lock():
            # Somebody may have promoted one meanwhile, or another server may have started.
            changes = current_aliases(serving.store_uri, serving.run)
            if serving.alias not in changes:
                changes[serving.alias] = AliasChange(
                    alias=serving.alias,
                    checkpoint_id=latest.artifact_id,
                    previous=None,
                    run=run.name,
                    who="serve-policy",
                    reason="the latest checkpoint of the run, since the alias meant nothing",
                    gate={},
                    changed=datetime.now(UTC),
                )
                change_alias(serving.store_uri, serving.run, changes[serving.alias])
    names = [serving.alias, *(() if serving.canary is None else (serving.canary.alias,))]
    return [changes[name] for name in names if name in changes]


def _notes(serving: Serving, config: RunConfig, stored: StoredPolicies, tell: Tell) -> NoteSearch | None:
    memory = serving.settings.memory
    if memory.scope == "none":
        return None
    search = run_memory_search(config, memory, stored.resources)
    # The first search loads the model that embeds.
    search("", "", "")
    return NoteSearch(search, prompts_with_notes(config), tell)


class _EngineStop:
    """The event that ends what engines wait for."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_serving = False


@contextmanager
def _until_serving(stop: threading.Event) -> Iterator[_EngineStop]:
    """Passes `stop` on to engines, until `is_serving` is set."""
    passed, over = _EngineStop(), threading.Event()

    def watch() -> None:
        while not over.wait(_LOOK_SECONDS) and not passed.is_serving:
            if stop.is_set():
                passed.event.set()

    watching = threading.Thread(target=watch, name="stop", daemon=True)
    watching.start()
    try:
        yield passed
    finally:
        over.set()
        watching.join()


class _TellWarnings(Listener):
    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def waiting(self, title: str, what: str, seconds: float, detail: str) -> None:
        if seconds and not int(seconds) % 30:
            self._tell(f"Waiting for {what}: {seconds:.0f} s {detail}")

    def warn(self, message: str) -> None:
        self._tell(message)

"""Who gets the next idle worker, and what happens when workers are lost."""

from __future__ import annotations

from threading import Event

import pytest

from erl_pipeline.config.pipeline import DeviceGroups, ResourcesConfig
from erl_pipeline.plan.runner import RunnerCall, StageJob, WorkerDied
from erl_pipeline.plan.stage import WorkerSettings
from flows import places as places_module
from flows.places import Loss, NoWorkerLeft, Places
from storage.errors import Interrupted
from tests.flows.small_plans import MEET_TRAINING, WRITE, WRITE_ON_DEVICE, Recorded, planned

WORKER = WorkerSettings(store_uri="/store", run="small", threads=1)
ONE_DEVICE = ResourcesConfig()
LOSS = Loss("a worker", "all workers are gone", "Start some")
PLAIN = StageJob(planned(WRITE, "plain"), WORKER)
ON_DEVICE = StageJob(planned(WRITE_ON_DEVICE, "on device"), WORKER)


class Three:
    """Three workers, of which the first has the device; those in `gone` are lost."""

    def __init__(self, resources: ResourcesConfig = ONE_DEVICE) -> None:
        self.stop = Event()
        self.listener = Recorded()
        self.gone: set[str] = set()
        self.replaced: list[int] = []
        call = RunnerCall(WORKER, resources, self.listener, self.stop)
        self.places = Places[str](call, 3, LOSS, self.gone.__contains__, self.replaced.append)
        for place, name in enumerate(("device", "second", "third")):
            self.places.enter(place, name)


def test_the_worker_with_the_device_is_kept_for_stages_that_need_it() -> None:
    taken = Three().places.taken
    with taken(PLAIN) as last, taken(PLAIN) as second, taken(ON_DEVICE) as first:
        assert (first, second, last) == ("device", "second", "third")
    with taken(ON_DEVICE) as again:
        assert again == "device"


def test_with_groups_the_first_worker_samples_and_the_second_trains() -> None:
    three = Three(ResourcesConfig(groups=DeviceGroups(sample=(0,), train=(1,))))
    training = StageJob(planned(MEET_TRAINING, "training"), WORKER)
    with three.places.taken(training) as second, three.places.taken(ON_DEVICE) as first:
        assert (first, second) == ("device", "second")
    with three.places.taken(PLAIN) as third:
        assert third == "third"


def test_idle_workers_that_are_gone_are_given_up_with_the_one_that_died() -> None:
    three = Three()
    three.gone.add("device")
    with pytest.raises(WorkerDied), three.places.taken(PLAIN):
        raise WorkerDied
    assert three.places.workers == ["second"]
    assert sorted(three.replaced) == [0, 2]
    with pytest.raises(ValueError, match="of the stage"), three.places.taken(PLAIN) as worker:
        raise ValueError(f"of the stage, and no fault of {worker}")
    assert three.places.workers == ["second"]


def test_a_stage_waits_for_a_lost_worker_until_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "_PATIENCE_SECONDS", 0.0)
    three = Three()
    with pytest.raises(WorkerDied), three.places.taken(ON_DEVICE):
        raise WorkerDied
    with pytest.raises(NoWorkerLeft, match=r"on device of iteration 1: all workers are gone\. Start some"):
        three.places.taken(ON_DEVICE).__enter__()
    assert three.listener.told == [
        ("waiting", "write_on_device on device of iteration 1", "a worker", "all workers are gone")
    ]
    three.stop.set()
    with pytest.raises(Interrupted):
        three.places.taken(ON_DEVICE).__enter__()

"""What a few operations on fake tensors take, worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from erl_pipeline.sizing.recorder import ACTIVATIONS, LOGITS, MASTERS, MOMENTS, WEIGHTS, Recorder
from storage.errors import InputError


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder(vocabulary=1000, ranks=4)
    with FakeTensorMode(allow_non_fake_inputs=True), recorder:
        yield recorder


def test_the_peak_is_the_most_that_was_in_use_at_once(recorder: Recorder) -> None:
    first = torch.zeros(100)
    second = torch.zeros(50)
    view = first[:10]
    del first, second
    third = torch.zeros(20)
    assert recorder.peaks()["cpu"].bytes == 600
    del view
    fourth = torch.zeros(200)  # with the third, the only ones now
    peak = recorder.peaks()["cpu"]
    assert (peak.bytes, dict(peak.parts)) == (880, {ACTIVATIONS: 880})
    assert len(third) + len(fourth) == 220


def test_memory_of_a_storage_that_grows_and_is_emptied_is_followed(recorder: Recorder) -> None:
    tensor = torch.zeros(100)
    tensor.untyped_storage().resize_(0)
    torch.zeros(50)
    tensor.untyped_storage().resize_(2000)
    assert recorder.peaks()["cpu"].bytes == 2000


def test_parts_are_told_apart_by_what_computes_with_them(recorder: Recorder) -> None:
    weight = torch.nn.Parameter(torch.zeros(10, 10))
    recorder.name([weight], WEIGHTS)
    master = torch.nn.Parameter(torch.zeros(10, 10))
    logits = torch.zeros(3, 1000)
    master.grad = torch.zeros(10, 10)
    torch.optim.AdamW([master], fused=True).step()
    parts = recorder.peaks()["cpu"].parts
    assert (parts[WEIGHTS], parts[MASTERS], parts[LOGITS]) == (400, 400, 12_000)
    assert parts[MOMENTS] == 800
    assert len(logits) == 3


def test_a_product_of_matrices_is_two_operations_for_each_pair(recorder: Recorder) -> None:
    torch.zeros(3, 5) @ torch.zeros(5, 7)
    assert recorder.costs.flops == 2 * 3 * 5 * 7


def test_collectives_count_what_a_ring_sends(recorder: Recorder) -> None:
    recorder.add_collective("allgather_base", 400)
    recorder.add_collective("allreduce", 400)
    assert recorder.costs.interconnect_bytes == 300 + 600
    assert recorder.costs.collectives == {"allgather_base": 1, "allreduce": 1}


def test_what_reads_values_is_answered_and_whole_numbers_are_refused(recorder: Recorder) -> None:
    values = torch.ones(4)
    assert (float(values.sum()), bool(values.sum() > 3), torch.equal(values, values + 1)) == (
        0.0,
        False,
        True,
    )
    assert values.numpy().tolist() == [0.0] * 4
    assert values[values > 3].shape == (4,)
    with pytest.raises(InputError, match=r"a library reads a whole number"):
        int(torch.ones(4, dtype=torch.long).max())


def test_a_phase_begins_with_what_is_left_of_the_one_before(recorder: Recorder) -> None:
    kept = torch.zeros(10)
    torch.zeros(1000)
    recorder.begin("update")
    torch.zeros(5) @ torch.zeros(5)
    peak = recorder.peaks()["cpu"]
    assert (peak.phase, peak.bytes) == ("update", 40 + 20 + 20 + 4)
    recorder.begin("commit")
    assert recorder.costs.flops == 0
    assert len(kept) == 10

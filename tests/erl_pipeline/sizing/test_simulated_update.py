"""The simulated update of a small model, with numbers worked out by hand. All of them would fail with a torch
whose private functions have changed, by which a device stands for a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import LlamaConfig

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.sizing.recorder import (
    GATHERED,
    GRADIENTS,
    MASTERS,
    MOMENTS,
    REFERENCE,
    WEIGHTS,
)
from erl_pipeline.sizing.simulated_work import GPU, RankReport, SimulatedWork, simulated_sequences
from erl_pipeline.trainers.interface import Passes
from tests import forked

MODEL = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    tie_word_embeddings=True,
)
BLOCK = (
    2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
)  # queries, output; keys, values; three of the MLP; norms
OUTSIDE = 512 * 64 + 64
PARAMETERS = OUTSIDE + 2 * BLOCK
SEQUENCES = 8


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> SimulatedWork:
    folder = tmp_path_factory.mktemp("model")
    MODEL.save_pretrained(folder)
    return SimulatedWork(
        model=str(folder),
        dtype="bfloat16",
        lora=None,
        optimizer=OptimizerConfig(),
        objective=ObjectiveConfig(),
        update=UpdateConfig(microbatch_tokens=40),
        fine_tune=None,
        sequences=SEQUENCES,
        group=2,
        prompt_tokens=16,
        response_tokens=9,
    )


def simulate(work: SimulatedWork) -> RankReport:
    """As the function of this name, whose process takes seconds to import torch."""
    report: RankReport = forked.call("erl_pipeline.sizing.simulated_update:simulate_here", work)
    return report


@pytest.fixture(scope="module")
def report(work: SimulatedWork) -> RankReport:
    return simulate(work)


def test_a_local_update_in_bf16_takes_16_bytes_a_weight_beside_gradients(report: RankReport) -> None:
    parts = report.peaks[GPU].parts
    assert parts[WEIGHTS] == PARAMETERS * 2
    assert parts[MASTERS] == PARAMETERS * 4
    # Each weight has a count of steps, which is a number of 4 bytes: 9 in a block, 2 outside.
    assert parts[MOMENTS] == PARAMETERS * 8 + 4 * (2 * 9 + 2)
    update = report.updates["update"]
    # A group is one microbatch: 16 tokens of the prompt, and 8 of each response, whose last predicts nothing.
    assert (update.optimizer_steps, update.microbatches) == (1, 4)
    assert update.waits_per_microbatch == 0
    assert update.costs.interconnect_bytes == 0
    # What a checkpoint keeps: weights, fp32 weights and moments.
    assert report.updates["commit"].costs.to_host_bytes == PARAMETERS * 14 + 4 * (2 * 9 + 2)


def test_a_head_that_computes_in_fp32_takes_more_memory(work: SimulatedWork, report: RankReport) -> None:
    """Its weights are copied, and its logits are twice as wide."""
    wide = simulate(replace(work, head_dtype="float32"))
    assert wide.peaks[GPU].bytes > report.peaks[GPU].bytes


def test_passes_cost_the_same_whether_they_are_computed_or_only_counted(
    work: SimulatedWork, report: RankReport
) -> None:
    few, many = (simulate(replace(work, sequences=number)).updates["update"] for number in (4, 12))
    middle = report.updates["update"]
    assert (few.microbatches, middle.microbatches, many.microbatches) == (2, 4, 6)
    assert many.costs.flops - middle.costs.flops == middle.costs.flops - few.costs.flops > 0


def test_a_rank_has_its_share_and_gathers_blocks(work: SimulatedWork) -> None:
    report = simulate(replace(work, processes=2, rank=0))
    parts = report.peaks[GPU].parts
    assert parts[WEIGHTS] == PARAMETERS // 2 * 2
    assert parts[MASTERS] == PARAMETERS // 2 * 4
    assert parts[MOMENTS] == PARAMETERS // 2 * 8 + 4 * (2 * 9 + 2)
    assert OUTSIDE * 2 <= parts[GATHERED] <= 2 * (OUTSIDE + 2 * BLOCK) * 2
    assert parts[GRADIENTS] > 0
    assert report.updates["update"].microbatches == 2
    # Every other tensor of the state, about half of it, until it is written.
    assert report.peaks["cpu"].phase == "commit"
    assert report.peaks["cpu"].bytes == pytest.approx(PARAMETERS * 12 // 2, rel=0.15)
    # All weights and all of the state, of which a rank sends its half of every other tensor.
    assert report.updates["commit"].costs.interconnect_bytes == PARAMETERS * (2 + 12) // 4


def test_gradients_of_blocks_can_be_added_up_once_in_a_step(work: SimulatedWork) -> None:
    """Of two passes of a rank the first then sends no gradients of the blocks."""
    shared = replace(work, processes=2, rank=0)
    each, step = simulate(shared), simulate(replace(shared, passes=Passes(gradient_sums="step")))
    sent = [report.updates["update"].costs.interconnect_bytes for report in (each, step)]
    # Half of the fp32 gradients goes to the other rank.
    assert sent[0] - sent[1] == 2 * BLOCK * 4 // 2


def test_state_in_host_memory_is_moved_once_a_step(work: SimulatedWork) -> None:
    report = simulate(replace(work, optimizer=OptimizerConfig(state_device="cpu")))
    assert not {MASTERS, MOMENTS} & set(report.peaks[GPU].parts)
    assert report.peaks["cpu"].parts[MASTERS] == PARAMETERS * 4
    costs = report.updates["update"].costs
    # The sums of the gradients in fp32, and the new weights in bf16; also what is observed of each token.
    assert PARAMETERS * 4 <= costs.to_host_bytes < PARAMETERS * 4 + 10_000
    assert PARAMETERS * 2 <= costs.to_device_bytes < PARAMETERS * 2 + 20_000


@pytest.mark.parametrize("processes", [None, 2])
def test_a_reference_and_a_supervised_update_are_part_of_it(
    work: SimulatedWork, processes: int | None
) -> None:
    objective = ObjectiveConfig(kl_coefficient=0.1)
    fine_tune = FineTuneConfig(microbatch_tokens=40)
    report = simulate(replace(work, objective=objective, fine_tune=fine_tune, processes=processes))
    # It is in memory for one pass, in which nothing is kept for a backward pass: the peak comes later.
    assert REFERENCE not in report.peaks[GPU].parts
    assert report.updates["update"].costs.to_device_bytes > PARAMETERS * 2
    assert list(report.updates) == ["update", "fine-tune", "commit"]
    assert report.updates["fine-tune"].optimizer_steps == 3


def test_an_adapter_is_all_that_has_state(work: SimulatedWork) -> None:
    report = simulate(replace(work, lora=LoraConfig(rank=4), objective=ObjectiveConfig(kl_coefficient=0.1)))
    parts = report.peaks[GPU].parts
    # Rank 4 at seven matrices: 64 + 64 of queries and output, 64 + 32 of keys and values, 192 of the MLP.
    adapter = 2 * 4 * (2 * 128 + 2 * 96 + 3 * 192)
    assert parts[WEIGHTS] == (PARAMETERS + adapter) * 2
    assert parts[MASTERS] == adapter * 4
    assert REFERENCE not in parts


def test_sequences_of_a_group_share_a_prompt_that_no_other_group_has(work: SimulatedWork) -> None:
    batch = simulated_sequences(work)
    assert len(batch) == SEQUENCES
    prompts = [sequence.prompt_token_ids for sequence in batch]
    assert prompts[0] == prompts[1] != prompts[2]
    assert {len(prompt) for prompt in prompts} == {16}
    assert {len(sequence.response_token_ids) for sequence in batch} == {9}

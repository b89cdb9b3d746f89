"""The stages that make a dataset of what people say that a served policy should have answered, and train the
policy on it by supervision."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from erl_pipeline.config.base import Settings
from erl_pipeline.plan.plan import POLICY
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import WeightsSettings, weights_settings
from erl_pipeline.stages.names import ROLLOUTS, further_sequence_files, trajectory_files
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint
from erl_pipeline.stages.training.distillation import DATASET, FINE_TUNE, NEWEST, count_rows, distilled_row
from erl_pipeline.stages.training.training_stage import plan_training

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.plan.plan import RunState
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from storage.serving.collected import ServedCorrection
    from storage.tables.training import SftRow
    from storage.tables.trajectories import Trajectory

SOURCE = "feedback/1"
"""`source_system` of the rows: a correction in the log of a served policy."""


class CorrectionSettings(Settings):
    """What the dataset depends on, besides the rollouts and the policy, whose tokenizer is used."""

    weights: WeightsSettings


def _slice(config: RunConfig, _sources: Sources) -> CorrectionSettings:
    return CorrectionSettings(weights=weights_settings(config))


def _build(call: StageCall[CorrectionSettings]) -> StageResult:
    """Write the dataset. A correction that does not fit into the policy's context is left out and counted."""
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from storage.serving.collected import SERVED_CORRECTIONS, ServedCorrection, collected_rows
    from storage.tables.training import write_sft_rows
    from storage.tables.trajectories import read_trajectories

    rollouts, store = call.inputs[ROLLOUTS], call.resources.store
    found = collected_rows(rollouts, store, SERVED_CORRECTIONS)
    corrections = [ServedCorrection(**row) for row in found]
    answered: dict[str, Trajectory] = {}
    if corrections:
        read = read_trajectories(
            [*trajectory_files(rollouts, store), *further_sequence_files(rollouts, store)]
        )
        answered = {row.trajectory_id: row for row in read}
    policy = sampled_checkpoint(call, call.settings.weights, POLICY)
    chat = ChatTokenizer(policy.tokenizer)
    made = list(corrected_rows(corrections, answered, chat, policy.end_token_ids))
    rows = [row for row in made if len(row.input_token_ids) <= policy.context_length]
    return StageResult(
        counters={**count_rows(rows), "too_long": len(made) - len(rows)},
        rows={DATASET: write_sft_rows(call.folder / DATASET, rows)},
    )


BUILD_CORRECTIONS = Stage(
    name="build_corrections",
    version=3,
    output="sft_dataset",
    settings=CorrectionSettings,
    compute=_build,
    slice=_slice,
)


def corrected_rows(
    corrections: Sequence[ServedCorrection],
    answered: Mapping[str, Trajectory],
    chat: ChatTokenizer,
    end_token_ids: frozenset[int],
) -> Iterator[SftRow]:
    """Supervised rows: what stood before an answer, token for token, and then the corrected answer, which
    alone is trained. What a forgotten user said gives none."""
    for each in corrections:
        row = answered.get(each.trajectory_id)
        if row is None or not each.text:
            continue
        said = [{"role": one["role"], "content": one["content"]} for one in json.loads(row.messages)]
        before = row.prompt_token_ids + row.response_token_ids[: each.tokens_before]
        tokens, mask = chat.completion([{"role": "assistant", "content": each.text}], end_token_ids)
        yield replace(
            distilled_row(row),
            sft_row_id=f"s-{each.feedback_id}",
            prompt=tuple(said[: each.messages_before]),
            completion=({"role": "assistant", "content": each.text},),
            input_token_ids=before + tuple(tokens),
            loss_mask=(0,) * len(before) + tuple(mask),
            memory_entry_ids=row.memory_entry_ids,
            source_system=SOURCE,
            source_trace_id=each.feedback_id,
            source_span_ids=(each.call_id,),
        )


FINE_TUNE_CORRECTIONS = replace(FINE_TUNE, name="fine_tune_corrections")
"""As `fine_tune`, in a place of its own: a method may have a dataset of its own in the same iteration."""


def plan_corrections(planner: Planner, state: RunState, iteration: int, rollouts: str) -> RunState:
    """Plan the dataset of the corrections in rollouts, and the training of the policy on it; returns the
    state after it."""
    inputs = {ROLLOUTS: rollouts, **state.model_inputs(POLICY)}
    dataset = planner.add(BUILD_CORRECTIONS, inputs, iteration=iteration)
    return plan_training(planner, state, iteration, FINE_TUNE_CORRECTIONS, {NEWEST: dataset}, POLICY)

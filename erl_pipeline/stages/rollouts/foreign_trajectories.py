"""Rollouts of other trainers as trajectories: tokenized, and with log-probabilities of a checkpoint.

Such files hold text, not the tokens that were sampled, and no log-probabilities. The text is tokenized again,
which may give other tokens. `behaviour_logprobs` are those of a checkpoint that the user names: of a trainer,
not of the sampler.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.messages import Message
from erl_pipeline.episodes.dialogue import ChatTokenizer
from erl_pipeline.episodes.rows import group_id
from erl_pipeline.stages.rollouts.foreign_rows import ForeignRow, Format, Text, read_foreign
from erl_pipeline.trainers.interface import TrainingStart
from erl_pipeline.trainers.sequences import trajectory_sequence
from storage.artifacts.recipe import digest
from storage.errors import InputError
from storage.tables.trajectories import Trajectory, trajectory_id
from storage.texts import StorableTexts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from erl_pipeline.policies.pretrained import LoadedPolicy

ENVIRONMENT = "imported"
"""The value of the column `environment` for rows whose environment is not known."""

_MICROBATCH_TOKENS = 4096


@dataclass(frozen=True)
class ForeignFile:
    """A file of another trainer, and what it does not say itself.

    `tokenizer` is the folder of the tokenizer that the policy had, `checkpoint` that of the model whose
    log-probabilities its rows get. `role` is the role of such answers in the method that will be trained.
    """

    path: Path
    format: Format
    tokenizer: Path
    checkpoint: Path
    role: str
    rewards: tuple[str, ...] = ()
    temperature: float = 1.0
    success_threshold: float = 1.0


def first_role() -> str:
    """The role of the answers with which episodes of the default method begin."""
    method = plugins("methods")[RunConfig.model_fields["method"].default].value
    role: str = method.roles(method.settings())[0]
    return role


def foreign_trajectories(file: ForeignFile, texts: StorableTexts) -> list[Trajectory]:
    """The rows of a file as trajectories, step by step; the steps are iterations from 1. `texts` counts the
    texts in which something is replaced.

    Rows of one step with equal prompts (or equal `task_id`) are a group.

    Raises InputError for a file that is wrong, a tokenizer that is not the checkpoint's, and a row that does
    not fit into the checkpoint's context.
    """
    from erl_pipeline.policies.pretrained import load_policy, load_tokenizer, tokenizer_digest

    rows = read_foreign(file.path, file.format, file.rewards, texts)
    named = tokenizer_digest(load_tokenizer(file.tokenizer))
    policy = load_policy(file.checkpoint)
    if policy.tokenizer_digest != named:
        raise InputError(
            f"the tokenizer of {file.checkpoint} ({policy.tokenizer_digest[:12]}) is not that of "
            f"{file.tokenizer} ({named[:12]}): its token ids would mean something else, so that no "
            "log-probabilities can be computed with it"
        )
    found = list(_tokenized(file, rows, policy))
    return list(_with_logprobs(found, policy, file.checkpoint))


def _tokenized(file: ForeignFile, rows: Sequence[ForeignRow], policy: LoadedPolicy) -> Iterator[Trajectory]:
    chat = ChatTokenizer(policy.tokenizer)
    iterations = {step: number for number, step in enumerate(sorted({row.step for row in rows}), start=1)}
    samples: dict[tuple[int, str], int] = {}
    for row in rows:
        iteration, task_id = iterations[row.step], digest(row.task)
        sample = samples.get((iteration, task_id), 0)
        samples[iteration, task_id] = sample + 1
        prompt = (
            _ids(policy.tokenizer, row.prompt) if isinstance(row.prompt, str) else chat.prompt(row.prompt)
        )
        response, mask = chat.completion(_turns(row.completion))
        where = f"{file.path}, row {row.number}"
        if not prompt:
            raise InputError(f"{where}: its prompt has no tokens")
        if len(prompt) + len(response) > policy.context_length:
            raise InputError(
                f"{where}: it has {len(prompt) + len(response)} tokens, and the checkpoint reads at most "
                f"{policy.context_length}; leave it out, or name a checkpoint with a longer context"
            )
        episode = trajectory_id(ENVIRONMENT, iteration, task_id, sample)
        yield Trajectory(
            trajectory_id=trajectory_id(ENVIRONMENT, iteration, task_id, sample, file.role),
            episode_id=episode,
            parent_trajectory_id=None,
            iteration=iteration,
            task_id=task_id,
            task_type=ENVIRONMENT,
            environment=ENVIRONMENT,
            role=file.role,
            revision_index=0,
            sample_index=sample,
            group_id=group_id(iteration, task_id, file.role, 0),
            subgroup=None,
            prompt_token_ids=tuple(prompt),
            response_token_ids=tuple(response),
            response_mask=tuple(mask),
            behaviour_logprobs=(0.0,) * len(response),
            temperature=file.temperature,
            policy_version="",
            tokenizer_digest=policy.tokenizer_digest,
            reward=row.reward,
            success=row.reward >= file.success_threshold,
            finish_reason="done",
            truncated=False,
            feedback="",
            messages=json.dumps(
                [*_shown("user", row.prompt), *_shown("assistant", row.completion)], ensure_ascii=False
            ),
            memory_version="",
            memory_entry_ids=(),
            seed=0,
            task_payload="{}",
        )


def _turns(completion: Text) -> Sequence[Message]:
    return [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion


def _with_logprobs(
    rows: Sequence[Trajectory], policy: LoadedPolicy, checkpoint: Path
) -> Iterator[Trajectory]:
    plugin = plugins("trainers")[RunConfig.model_fields["trainer"].default].value
    start = TrainingStart(checkpoint=checkpoint, load=lambda: policy, optimizer=OptimizerConfig())
    trainer = plugin.open(plugin.settings(), start)
    found = trainer.logprobs([trajectory_sequence(row) for row in rows], _MICROBATCH_TOKENS)
    for row, logprobs in zip(rows, found, strict=True):
        values = iter(logprobs.tolist())
        # Rounding may bring a log-probability above 0.
        placed = tuple(min(0.0, next(values)) if bit else 0.0 for bit in row.response_mask)
        yield replace(row, behaviour_logprobs=placed)


def _ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _shown(role: str, text: Text) -> list[dict[str, Any]]:
    return [{"role": role, "content": text}] if isinstance(text, str) else [dict(each) for each in text]

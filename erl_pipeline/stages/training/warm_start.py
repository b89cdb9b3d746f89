"""The stages that fine-tune a pretrained policy before the first iteration, on demonstrations of the
environment or on conversations of a file."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import Field, SerializeAsAny

from erl_pipeline.config.base import NotInstalledSettings, PluginSettings
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import (
    DemonstrationsWarmStart,
    MessagesWarmStart,
    PretrainedPolicyConfig,
    WarmStartSteps,
)
from erl_pipeline.environments.demonstrations import WarmStartQuestion
from erl_pipeline.environments.messages import answer_start
from erl_pipeline.plan.column import Column
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import CHECKPOINT, MODEL, WeightsSettings, policy_traits
from erl_pipeline.stages.tasks.prepare_tasks import (
    digests,
    located_environment,
    unchanged_file,
    without_files,
)
from erl_pipeline.stages.training.conversations import (
    as_conversation,
    conversation_sequences,
    read_conversations,
    write_conversations,
)
from erl_pipeline.stages.training.training_stage import TrainingSettings, count_steps, open_trainer
from erl_pipeline.trainers.interface import SupervisedTraining, Trainer
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.artifacts.recipe import derive_seed
from storage.errors import InputError
from storage.texts import StorableTexts

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.plan.planner import Planner
    from erl_pipeline.plan.sources import Sources
    from erl_pipeline.trainers.metrics import FineTuneMetrics

CONVERSATIONS, HELD_OUT = "conversations.jsonl", "held_out.jsonl"
"""The conversations that were trained on, and those that were held out, in the format of
`MessagesWarmStart.file`."""

_NAME = "warm_start"
_NO_COUNTERS: Mapping[str, int] = {}


class WarmStartSettings(TrainingSettings):
    """What a warm start depends on, besides the checkpoint; nothing of the method, so that runs share it."""

    warm_start: SerializeAsAny[WarmStartSteps]
    """Without its seed, which is in the recipe."""


class DemonstrationSettings(WarmStartSettings):
    """The same for demonstrations of an environment."""

    warm_start: DemonstrationsWarmStart
    environment: SerializeAsAny[PluginSettings]
    """Without the settings that name files."""
    files: dict[str, str] = Field(default_factory=dict, exclude_if=lambda files: not files)
    """Setting that names a file whose tasks are not shown -> SHA-256 of the file."""


class MessageSettings(WarmStartSettings):
    """The same for conversations of a file."""

    warm_start: MessagesWarmStart
    """Its `file` is the SHA-256 of the file."""


def plan_warm_start(planner: Planner, checkpoint: str) -> str:
    """Plan the warm start of the policy; returns the checkpoint after it, or the given one where there is
    none."""
    assert isinstance(planner.config.policy, PretrainedPolicyConfig)
    warm_start = planner.config.policy.warm_start
    if warm_start is None:
        return checkpoint
    stage = warm_start_stage(warm_start)
    return planner.add(stage, {CHECKPOINT: checkpoint}, iteration=None, seed=warm_start.seed)


def warm_start_stage(warm_start: DemonstrationsWarmStart | MessagesWarmStart) -> Stage[Any]:
    """The stage that trains a pretrained policy on demonstrations or on messages."""
    return DEMONSTRATIONS if isinstance(warm_start, DemonstrationsWarmStart) else MESSAGES


def warm_start_columns(config: RunConfig) -> tuple[Column, ...]:
    """What tables show of the warm start: the means of its examination, if its environment can name them."""
    warm_start = policy_traits(config.policy).warm_start
    if not isinstance(warm_start, DemonstrationsWarmStart) or isinstance(
        config.environment, NotInstalledSettings
    ):
        return ()
    plugin = plugins("environments")[config.environment.type].value
    parts = plugin.require_warm_start(config.environment)
    return tuple(
        Column(_NAME, name, name.replace("_", " "), f"{meaning}, after the warm start", share=True)
        for name, meaning in parts.measures.items()
    )


def _training(config: RunConfig) -> dict[str, Any]:
    """Settings that train all weights, with an optimizer of the warm start's own, whose moments are not
    carried on."""
    policy = config.policy
    assert isinstance(policy, PretrainedPolicyConfig)
    assert policy.warm_start is not None
    return {
        "optimizer": OptimizerConfig(
            learning_rate=policy.warm_start.learning_rate,
            carry_state=False,
            state_device=config.optimizer.state_device,
        ),
        "trainer": config.trainer,
        "weights": WeightsSettings(
            dtype=policy.dtype, head_dtype=policy.head_dtype, lora=None, adapter_seed=None
        ),
    }


def _demonstrations_slice(config: RunConfig, sources: Sources) -> DemonstrationSettings:
    plugin = plugins("environments")[config.environment.type].value
    assert isinstance(config.policy, PretrainedPolicyConfig)
    assert isinstance(config.policy.warm_start, DemonstrationsWarmStart)
    shown = plugin.warm_start.shown(config.environment)
    return DemonstrationSettings(
        warm_start=config.policy.warm_start.model_copy(update={"seed": 0}),
        environment=without_files(plugin, shown),
        files=digests(plugin, shown, sources),
        **_training(config),
    )


def _messages_slice(config: RunConfig, sources: Sources) -> MessageSettings:
    assert isinstance(config.policy, PretrainedPolicyConfig)
    assert isinstance(config.policy.warm_start, MessagesWarmStart)
    warm_start = config.policy.warm_start
    return MessageSettings(
        warm_start=warm_start.model_copy(update={"seed": 0, "file": sources.files[warm_start.file]}),
        **_training(config),
    )


def _on_demonstrations(call: StageCall[DemonstrationSettings]) -> StageResult:
    settings = call.settings.warm_start
    plugin, environment = located_environment(call)
    parts = plugin.require_warm_start(environment)
    stream = random.Random(derive_seed(call.seed, "demonstrations"))
    drawn = islice(parts.demonstrations(stream, settings), settings.steps * settings.batch)
    shown = [as_conversation(messages) for messages in drawn]
    write_conversations(call.folder / CONVERSATIONS, shown)
    sequences = conversation_sequences(call.inputs[CHECKPOINT].path(MODEL), shown, "demonstration")
    asked = parts.questions(random.Random(derive_seed(call.seed, "examination")), settings)
    longest = max(len(sequence.response_token_ids) for sequence in sequences)
    with open_trainer(call) as trainer:
        metrics = _train(call, trainer, sequences)
        _save(call, trainer)
        return _result(trainer, metrics, examine(call, trainer, asked, most_tokens=longest))


def _on_messages(call: StageCall[MessageSettings]) -> StageResult:
    settings = call.settings.warm_start
    path = unchanged_file(call.locations[settings.file], settings.file, "policy.warm_start.file")
    texts = StorableTexts()
    conversations = read_conversations(path, texts)
    numbers = list(range(len(conversations)))
    random.Random(derive_seed(call.seed, "held out")).shuffle(numbers)
    kept = round(settings.held_out * len(numbers))
    sequences = conversation_sequences(call.inputs[CHECKPOINT].path(MODEL), conversations, f"{path}, row")
    aside, trained = sorted(numbers[:kept]), sorted(numbers[kept:])
    if not trained:
        raise InputError(
            f"{path}: all {len(numbers)} conversations are held out; lower policy.warm_start.held_out"
        )
    write_conversations(call.folder / CONVERSATIONS, (conversations[number] for number in trained))
    write_conversations(call.folder / HELD_OUT, (conversations[number] for number in aside))
    held_out = [sequences[number] for number in aside]
    with open_trainer(call) as trainer:
        before = _loss(trainer, held_out, settings.microbatch_tokens)
        metrics = _train(call, trainer, [sequences[number] for number in trained])
        _save(call, trainer)
        after = _loss(trainer, held_out, settings.microbatch_tokens)
        measured = {"held_out_loss_before": before, "held_out_loss": after} if held_out else {}
        return _result(trainer, metrics, measured, texts.counters())


DEMONSTRATIONS = Stage(
    name=_NAME,
    version=10,
    output="checkpoint",
    settings=DemonstrationSettings,
    compute=_on_demonstrations,
    slice=_demonstrations_slice,
    code=("environment", "trainer"),
    needs="training",
)

MESSAGES = Stage(
    name=_NAME,
    version=10,
    output="checkpoint",
    settings=MessageSettings,
    compute=_on_messages,
    slice=_messages_slice,
    code=("trainer",),
    needs="training",
)


def _train(call: StageCall[Any], trainer: Trainer, sequences: Sequence[TrainingSequence]) -> FineTuneMetrics:
    steps: WarmStartSteps = call.settings.warm_start
    settings = FineTuneConfig(
        steps=steps.steps,
        batch_rows=steps.batch,
        microbatch_tokens=steps.microbatch_tokens,
        gradient_checkpointing=steps.gradient_checkpointing,
    )
    work = SupervisedTraining(sequences, settings, derive_seed(call.seed, "order"), steps.rate)
    return trainer.fine_tune_supervised(work, count_steps(call, steps.steps))


def _save(call: StageCall[Any], trainer: Trainer) -> None:
    """Write the model without the state of the optimizer: later training begins with its own."""
    from erl_pipeline.engines.probe_file import PROBE_FILE

    written = call.folder / "checkpoint"
    written.mkdir()
    trainer.save(written, state=False)
    for name in (MODEL, PROBE_FILE):
        (written / name).rename(call.folder / name)
    shutil.rmtree(written)


def _loss(trainer: Trainer, sequences: Sequence[TrainingSequence], microbatch_tokens: int) -> float:
    """Mean cross-entropy of the trained tokens, in nats; 0 without sequences."""
    found = trainer.logprobs(sequences, microbatch_tokens) if sequences else []
    tokens = sum(len(values) for values in found)
    return -sum(float(values.sum()) for values in found) / tokens if tokens else 0.0


def _result(
    trainer: Trainer,
    metrics: FineTuneMetrics,
    measured: Mapping[str, float],
    counters: Mapping[str, int] = _NO_COUNTERS,
) -> StageResult:
    return StageResult(
        counters={**metrics.counters(), **counters},
        metrics={**metrics.metrics(), **measured},
        determinism=trainer.determinism,
    )


EXAMINATION = "examination.jsonl"
"""Each question with the policy's answer and its scores."""

_AT_ONCE = 48  # questions that are answered together


def examine(
    call: StageCall[Any], trainer: Trainer, questions: Sequence[WarmStartQuestion], *, most_tokens: int
) -> dict[str, float]:
    """The mean of each score; the answers are written into the artifact. `most_tokens`: largest number of
    tokens in an answer; a longer one is cut off."""
    from erl_pipeline.engines.embedded.engine import TransformersEngine
    from erl_pipeline.engines.interface import GenerationRequest
    from erl_pipeline.episodes.dialogue import ChatTokenizer
    from erl_pipeline.policies.pretrained import load_policy

    policy = trainer.trained_policy() or load_policy(call.folder / MODEL, dtype=call.settings.weights.dtype)
    chat = ChatTokenizer(policy.tokenizer)
    engine = TransformersEngine(policy.model, policy.eos_token_ids, _AT_ONCE, stop=call.progress.stop)
    call.progress.begin(len(questions), "questions")
    scores: defaultdict[str, list[float]] = defaultdict(list)
    with (call.folder / EXAMINATION).open("w", encoding="utf-8") as file:
        for first in range(0, len(questions), _AT_ONCE):
            asked = questions[first : first + _AT_ONCE]
            prompts = [chat.prompt(question.prompt) for question in asked]
            answers = engine.generate(
                [
                    GenerationRequest(prompt, most_tokens, 0.0, 0, conversation=f"{first + number}")
                    for number, prompt in enumerate(prompts)
                ]
            )
            for question, prompt, answer in zip(asked, prompts, answers, strict=True):
                text = chat.text(answer.token_ids)
                found = question.scores(text[answer_start(text, thinks=chat.thinks_after(prompt)) :])
                line = {"messages": list(question.prompt), "answer": text, "scores": dict(found)}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                for name, score in found.items():
                    scores[name].append(score)
            call.progress.advance(len(asked), **_means(scores))
    return _means(scores)


def _means(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: sum(values) / len(values) for name, values in scores.items()}

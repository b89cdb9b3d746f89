"""The extractor: asking it, its first checkpoint where that is not the policy's, and its training on the
credit of its entries (CISPO, arXiv 2603.17621, eq. 3)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.experience import EXTRACTOR, ExperienceTemplates, Lessons
from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import UpdateConfig
from erl_pipeline.config.plugins import as_in_recipes, plugins
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.environments.messages import Message
from erl_pipeline.environments.prompt_format import ExperienceFormat
from erl_pipeline.plan.stage import Stage, StageCall, StageResult
from erl_pipeline.policies.checkpoints import WeightsSettings, weights_settings
from erl_pipeline.stages.extractor.names import CREDIT
from erl_pipeline.stages.extractor.prompts import ExperiencePrompts
from erl_pipeline.stages.names import TRAJECTORIES
from erl_pipeline.stages.rollouts.playing import opened_engine, sampling_determinism
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint
from erl_pipeline.stages.tasks.prepare_tasks import environment_identity, located_environment
from erl_pipeline.stages.training.first_checkpoint import (
    COLD_START,
    COPY_PRETRAINED,
    ColdStartSettings,
    cold_start_with,
)
from erl_pipeline.stages.training.training_stage import TrainingSettings, reinforce, training_settings
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.sequences import trajectory_sequence
from storage.artifacts.manifest import Determinism

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.engines.interface import Generation
    from erl_pipeline.episodes.dialogue import Dialogue
    from erl_pipeline.plan.sources import Sources
    from storage.tables.trajectories import Trajectory


class AskingSettings(Settings):
    """What an answer of the extractor depends on, besides its checkpoint and the content of its prompt."""

    environment: SerializeAsAny[PluginSettings]
    prompts: ExperienceTemplates
    max_operations: int
    max_tokens: int
    temperature: float
    engine: SerializeAsAny[PluginSettings]
    weights: WeightsSettings
    embedding_model: str
    """The embedding model of the memory that holds the entries it is shown."""


def lessons_of(config: RunConfig) -> Lessons:
    """The settings of a run with an extractor."""
    assert config.lessons is not None
    return config.lessons


def asking_settings(config: RunConfig, max_tokens: int) -> AskingSettings:
    """The settings of a run, for answers of at most `max_tokens` tokens."""
    lessons = lessons_of(config)
    extractor = lessons.settings.extractor
    return AskingSettings(
        environment=environment_identity(config),
        prompts=lessons.prompts,
        max_operations=extractor.max_operations,
        max_tokens=max_tokens,
        temperature=extractor.temperature,
        engine=as_in_recipes("engines", config.engine),
        weights=weights_settings(config),
        embedding_model=lessons.settings.embedding_model,
    )


def experience_format(settings: AskingSettings) -> ExperienceFormat:
    """The prompts: the environment's own, else the templates of the settings."""
    environment = plugins("environments")[settings.environment.type].value
    own: ExperienceFormat | None = environment.tiny.experience(settings.environment)
    return own or ExperiencePrompts(settings.prompts, settings.max_operations)


@dataclass(frozen=True)
class ExtractorPrompt:
    """One request to the extractor, and what its answer is about: the answer becomes a trajectory with these
    fields, whose id is `request_id`."""

    request_id: str
    messages: Sequence[Message]
    seed: int
    role: str
    episode_id: str
    parent_trajectory_id: str | None
    iteration: int
    task_id: str
    task_type: str
    environment: str
    sample_index: int
    feedback: str = ""
    task_payload: str = "{}"


@dataclass(frozen=True)
class ExtractorAnswer:
    """What the extractor wrote: the dialogue has its tokens, with their log-probabilities."""

    dialogue: Dialogue
    generation: Generation
    text: str


class Extractor:
    """The extractor that is among the inputs of a stage, ready to answer."""

    def __init__(self, call: StageCall[Any], settings: AskingSettings) -> None:
        from erl_pipeline.episodes.dialogue import ChatTokenizer

        self._settings = settings
        policy = sampled_checkpoint(call, settings.weights, EXTRACTOR)
        self._policy = policy
        self._tokenizer_digest = policy.tokenizer_digest
        self._chat = ChatTokenizer(policy.tokenizer)
        self.texts = self._chat.texts
        """Makes what it says storable, and counts what is replaced."""
        self._engine = opened_engine(call, settings.engine, policy.model).batches
        self.version = policy.model.checkpoint_id
        self.determinism: Determinism = sampling_determinism(call, settings.engine)

    def ask(self, prompts: Sequence[ExtractorPrompt]) -> list[ExtractorAnswer | None]:
        """The answers, in order; None where the prompt leaves no room in the context."""
        from erl_pipeline.engines.interface import GenerationRequest
        from erl_pipeline.episodes.dialogue import Dialogue

        dialogues = [Dialogue(self._chat, each.messages, self._policy.end_token_ids) for each in prompts]
        rooms = [self._policy.context_length - dialogue.length for dialogue in dialogues]
        asked = [place for place, room in enumerate(rooms) if room > 0]
        generations = self._engine.generate(
            [
                GenerationRequest(
                    prompt_token_ids=dialogues[place].token_ids,
                    max_new_tokens=min(self._settings.max_tokens, rooms[place]),
                    temperature=self._settings.temperature,
                    seed=prompts[place].seed,
                    conversation=prompts[place].request_id,
                    model=EXTRACTOR,
                )
                for place in asked
            ]
        )
        answers: dict[int, ExtractorAnswer] = {}
        for place, generation in zip(asked, generations, strict=True):
            text = dialogues[place].add_turn(generation).text
            answers[place] = ExtractorAnswer(dialogues[place], generation, text)
        return [answers.get(place) for place in range(len(prompts))]

    def trajectory(
        self, prompt: ExtractorPrompt, answer: ExtractorAnswer, texts: Sequence[str] | None
    ) -> Trajectory:
        """An answer as a sequence to train on. Its reward is 0, because its worth is known only later.
        `texts`: the texts in the answer; None where it is ill-formed."""
        from erl_pipeline.episodes.context import group_id
        from storage.tables.trajectories import Trajectory

        dialogue = answer.dialogue
        return Trajectory(
            trajectory_id=prompt.request_id,
            episode_id=prompt.episode_id,
            parent_trajectory_id=prompt.parent_trajectory_id,
            iteration=prompt.iteration,
            task_id=prompt.task_id,
            task_type=prompt.task_type,
            environment=prompt.environment,
            role=prompt.role,
            revision_index=0,
            sample_index=prompt.sample_index,
            group_id=group_id(prompt.iteration, prompt.task_id, prompt.role, 0),
            subgroup=None,
            prompt_token_ids=dialogue.prompt_token_ids,
            response_token_ids=tuple(dialogue.response_token_ids),
            response_mask=tuple(dialogue.response_mask),
            behaviour_logprobs=tuple(dialogue.behaviour_logprobs),
            temperature=self._settings.temperature,
            policy_version=self.version,
            tokenizer_digest=self._tokenizer_digest,
            reward=0.0,
            success=False,
            finish_reason="ill_formed" if texts is None else answer.generation.finish_reason,
            truncated=dialogue.truncated,
            feedback=prompt.feedback,
            messages=json.dumps(dialogue.messages, ensure_ascii=False),
            # The table of calls names the entries that it was shown; the memory was not searched for it.
            memory_version="",
            memory_entry_ids=(),
            seed=prompt.seed,
            task_payload=prompt.task_payload,
            text=None if texts is None else "\n".join(texts),
        )


_NAME = "bootstrap_extractor"


def _cold_start_slice(config: RunConfig, sources: Sources) -> ColdStartSettings:
    """The settings of the policy's cold start, with the extractor's own settings where it has some."""
    assert COLD_START.slice is not None
    settings = COLD_START.slice(config, sources)
    assert isinstance(settings.policy, TinyPolicyConfig)
    own = lessons_of(config).settings.extractor.cold_start
    if own is None:
        return settings
    learning = own.model_copy(update={"seed": 0})  # the recipe holds the seed
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"cold_start": learning})})


def _cold_start(call: StageCall[ColdStartSettings]) -> StageResult:
    plugin, environment = located_environment(call)
    parts = plugin.tiny.extractor(environment)
    assert parts is not None  # The configuration has been checked.
    return cold_start_with(call, parts)


COLD_START_EXTRACTOR = replace(
    COLD_START, name=_NAME, compute=_cold_start, slice=_cold_start_slice, code=COLD_START.code
)

COPY_EXTRACTOR = replace(COPY_PRETRAINED, name=_NAME, slice=None)
"""The plan passes its settings."""


class ExtractorUpdateSettings(TrainingSettings):
    """The part of the configuration that an update of the extractor reads."""

    objective: ObjectiveConfig
    update: UpdateConfig


def extractor_objective(clip: float) -> ObjectiveConfig:
    """The mean over all tokens of the batch of -sg(clip(ratio)) A log p, the ratio taken against the
    log-probabilities that were stored; no KL term, no entropy bonus."""
    return ObjectiveConfig(surrogate="cispo", clip_low=clip, clip_high=clip, loss_normalization="token_mean")


def batch_advantages(rewards: Sequence[float]) -> list[float]:
    """Rewards less their mean over the batch; not divided by anything (arXiv 2603.17621, section 3.3)."""
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    return [reward - mean for reward in rewards]


def _slice(config: RunConfig, _sources: Sources) -> ExtractorUpdateSettings:
    extractor = lessons_of(config).settings.extractor
    return ExtractorUpdateSettings(
        objective=extractor_objective(extractor.clip),
        # One step for each batch, as in the paper and the code.
        update=config.update.model_copy(update={"epochs": 1, "minibatches": 1}),
        **{**training_settings(config), "optimizer": extractor.optimizer or config.optimizer},
    )


def _compute(call: StageCall[ExtractorUpdateSettings]) -> StageResult:
    """Train on the batch that comes with the credits; without one the checkpoint is carried over."""
    from storage.tables.trajectories import read_trajectories

    settings = call.settings
    rows = read_trajectories([call.inputs[CREDIT].path(TRAJECTORIES)])
    advantages = batch_advantages([row.reward for row in rows])
    sequences = [trajectory_sequence(row, advantage) for row, advantage in zip(rows, advantages, strict=True)]
    work = Reinforcement(sequences, settings.objective, settings.update, call.seed)
    return reinforce(call, work, rows, {"requests_trained": len({row.parent_trajectory_id for row in rows})})


UPDATE_EXTRACTOR = Stage(
    name="update_extractor",
    version=4,
    output="checkpoint",
    settings=ExtractorUpdateSettings,
    compute=_compute,
    slice=_slice,
    code=("trainer",),
    needs="training",
)

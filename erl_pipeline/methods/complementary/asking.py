"""Asking the extractor: code shared by all stages in which the extractor writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import SerializeAsAny

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.plugins.operational import as_in_recipes
from erl_pipeline.engines.plugin import SampledModel
from erl_pipeline.environments.experience_format import ExperienceFormat
from erl_pipeline.environments.messages import Message
from erl_pipeline.methods.complementary.prompts import ExperiencePrompts, ExperienceTemplates
from erl_pipeline.methods.complementary.settings import EXTRACTOR, ComplementaryConfig
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.policies.checkpoints import (
    LoadedPolicies,
    WeightsSettings,
    checkpoint_parts,
    weights_settings,
)
from erl_pipeline.stages.rollouts.playing import opened_engine, sampling_determinism
from erl_pipeline.stages.tasks.prepare_tasks import environment_identity
from storage.artifacts.manifest import Determinism

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.engines.interface import Generation
    from erl_pipeline.episodes.dialogue import Dialogue
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


def asking_settings(config: RunConfig, max_tokens: int) -> AskingSettings:
    """The settings of a run, for answers of at most `max_tokens` tokens."""
    method = config.method
    assert isinstance(method, ComplementaryConfig)
    assert method.crl is not None
    extractor = method.crl.extractor
    return AskingSettings(
        environment=environment_identity(config),
        prompts=method.prompts,
        max_operations=extractor.max_operations,
        max_tokens=max_tokens,
        temperature=extractor.temperature,
        engine=as_in_recipes("engines", config.engine),
        weights=weights_settings(config),
        embedding_model=method.crl.embedding_model,
    )


def experience_format(settings: AskingSettings) -> ExperienceFormat:
    """The prompts: the environment's own, else the method's templates."""
    environment = plugins("environments")[settings.environment.type].value
    own: ExperienceFormat | None = environment.tiny.experience(settings.environment)
    return own or ExperiencePrompts(settings.prompts, settings.max_operations)


@dataclass(frozen=True)
class ExtractorPrompt:
    """One request to the extractor. `request_id` is the id of the trajectory that it becomes."""

    request_id: str
    messages: Sequence[Message]
    seed: int


@dataclass(frozen=True)
class ExtractorAnswer:
    """What the extractor wrote: the dialogue has its tokens, with their log-probabilities."""

    dialogue: Dialogue
    generation: Generation
    text: str


@dataclass(frozen=True)
class Origin:
    """What a request was about; its answer becomes a trajectory with these fields."""

    episode_id: str
    parent_trajectory_id: str | None
    iteration: int
    task_id: str
    task_type: str
    environment: str
    role: str
    sample_index: int
    feedback: str = ""
    task_payload: str = "{}"


class Extractor:
    """The extractor that is among the inputs of a stage, ready to answer."""

    def __init__(self, call: StageCall[Any], settings: AskingSettings) -> None:
        from erl_pipeline.episodes.dialogue import ChatTokenizer

        self._settings = settings
        parts = checkpoint_parts(call.inputs)
        policy = call.resources.keep("policies", LoadedPolicies).get(parts, settings.weights)
        self._policy = policy
        self._tokenizer_digest = policy.tokenizer_digest
        self._chat = ChatTokenizer(policy.tokenizer)
        self.texts = self._chat.texts
        """Makes what it says storable, and counts what is replaced."""
        self._engine = opened_engine(call, settings.engine, SampledModel(EXTRACTOR, policy, parts)).batches
        self.version = parts.checkpoint_id
        self.determinism: Determinism = sampling_determinism(call, settings.engine)

    def ask(self, questions: Sequence[ExtractorPrompt]) -> list[ExtractorAnswer | None]:
        """The answers, in order; None where the prompt leaves no room in the context."""
        from erl_pipeline.engines.interface import GenerationRequest
        from erl_pipeline.episodes.dialogue import Dialogue

        dialogues = [
            Dialogue(self._chat, question.messages, self._policy.eos_token_ids) for question in questions
        ]
        rooms = [self._policy.context_length - dialogue.length for dialogue in dialogues]
        asked = [place for place, room in enumerate(rooms) if room > 0]
        generations = self._engine.generate(
            [
                GenerationRequest(
                    prompt_token_ids=dialogues[place].token_ids,
                    max_new_tokens=min(self._settings.max_tokens, rooms[place]),
                    temperature=self._settings.temperature,
                    seed=questions[place].seed,
                    conversation=questions[place].request_id,
                    model=EXTRACTOR,
                )
                for place in asked
            ]
        )
        answers: dict[int, ExtractorAnswer] = {}
        for place, generation in zip(asked, generations, strict=True):
            text = dialogues[place].add_turn(generation).text
            answers[place] = ExtractorAnswer(dialogues[place], generation, text)
        return [answers.get(place) for place in range(len(questions))]

    def trajectory(
        self, origin: Origin, question: ExtractorPrompt, answer: ExtractorAnswer, texts: Sequence[str] | None
    ) -> Trajectory:
        """An answer as a sequence to train on. Its reward is 0, because its worth is known only later.

        Args:
            texts: the texts in the answer; None where it is ill-formed.
        """
        from erl_pipeline.episodes.rows import group_id
        from storage.tables.trajectories import Trajectory

        dialogue = answer.dialogue
        return Trajectory(
            trajectory_id=question.request_id,
            episode_id=origin.episode_id,
            parent_trajectory_id=origin.parent_trajectory_id,
            iteration=origin.iteration,
            task_id=origin.task_id,
            task_type=origin.task_type,
            environment=origin.environment,
            role=origin.role,
            revision_index=0,
            sample_index=origin.sample_index,
            group_id=group_id(origin.iteration, origin.task_id, origin.role, 0),
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
            feedback=origin.feedback,
            messages=json.dumps(dialogue.messages, ensure_ascii=False),
            # The table of calls names the entries that it was shown; the memory was not searched for it.
            memory_version="",
            memory_entry_ids=(),
            seed=question.seed,
            task_payload=origin.task_payload,
            text=None if texts is None else "\n".join(texts),
        )

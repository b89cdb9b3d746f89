"""Sampling one answer to each of many prompts, from a checkpoint among the inputs of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.environments.messages import Message
from erl_pipeline.plan.stage import StageCall
from erl_pipeline.policies.checkpoints import WeightsSettings
from erl_pipeline.stages.rollouts.playing import opened_engine, sampling_determinism
from erl_pipeline.stages.sampled_checkpoint import sampled_checkpoint

if TYPE_CHECKING:
    from erl_pipeline.engines.interface import Generation
    from erl_pipeline.episodes.dialogue import Dialogue
    from storage.tables.trajectories import Trajectory


@dataclass(frozen=True)
class SingleTurnPrompt:
    """A prompt, and what its answer is about: the answer becomes a trajectory with these fields, whose id is
    `request_id`."""

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
    revision_index: int = 0
    feedback: str = ""
    task_payload: str = "{}"


@dataclass(frozen=True)
class SingleTurnAnswer:
    """What the model wrote: the dialogue has its tokens, with their log-probabilities."""

    dialogue: Dialogue
    generation: Generation
    text: str


class SingleTurnSampler:
    """A checkpoint among the inputs of a stage, which an engine samples from under the name `model`."""

    def __init__(
        self,
        call: StageCall[Any],
        model: str,
        weights: WeightsSettings,
        engine: PluginSettings,
        max_tokens: int,
        temperature: float,
    ) -> None:
        from erl_pipeline.episodes.dialogue import ChatTokenizer

        self._model, self._max_tokens, self._temperature = model, max_tokens, temperature
        self._policy = sampled_checkpoint(call, weights, model)
        self._chat = ChatTokenizer(self._policy.tokenizer)
        self.texts = self._chat.texts
        """Makes what it says storable, and counts what is replaced."""
        self._engine = opened_engine(call, engine, self._policy.model).batches
        self.version = self._policy.model.checkpoint_id
        self.determinism = sampling_determinism(call, engine)

    def ask(self, prompts: Sequence[SingleTurnPrompt]) -> list[SingleTurnAnswer | None]:
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
                    max_new_tokens=min(self._max_tokens, rooms[place]),
                    temperature=self._temperature,
                    seed=prompts[place].seed,
                    conversation=prompts[place].request_id,
                    model=self._model,
                )
                for place in asked
            ]
        )
        answers: dict[int, SingleTurnAnswer] = {}
        for place, generation in zip(asked, generations, strict=True):
            text = dialogues[place].add_turn(generation).text
            answers[place] = SingleTurnAnswer(dialogues[place], generation, text)
        return [answers.get(place) for place in range(len(prompts))]

    def trajectory(self, prompt: SingleTurnPrompt, answer: SingleTurnAnswer, text: str | None) -> Trajectory:
        """The row of an answer. Its reward is 0, because its worth is known only later, if ever. `text`: what
        is used of the answer; None where it is ill-formed."""
        from erl_pipeline.episodes.context import conversation_columns, group_id
        from storage.tables.trajectories import Trajectory

        return Trajectory(
            trajectory_id=prompt.request_id,
            episode_id=prompt.episode_id,
            parent_trajectory_id=prompt.parent_trajectory_id,
            iteration=prompt.iteration,
            task_id=prompt.task_id,
            task_type=prompt.task_type,
            environment=prompt.environment,
            role=prompt.role,
            revision_index=prompt.revision_index,
            sample_index=prompt.sample_index,
            group_id=group_id(prompt.iteration, prompt.task_id, prompt.role, prompt.revision_index),
            subgroup=None,
            **conversation_columns(answer.dialogue),
            temperature=self._temperature,
            policy_version=self.version,
            tokenizer_digest=self._policy.tokenizer_digest,
            reward=0.0,
            success=False,
            finish_reason="ill_formed" if text is None else answer.generation.finish_reason,
            truncated=answer.dialogue.truncated,
            feedback=prompt.feedback,
            # Memory was not searched for the prompt.
            memory_version="",
            memory_entry_ids=(),
            seed=prompt.seed,
            task_payload=prompt.task_payload,
            text=text,
        )

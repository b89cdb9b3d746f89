"""Settings of prompt evolution, and the roles of its trajectories."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from erl_pipeline.config.base import PluginSettings
from erl_pipeline.config.memory import InstructionPer, NoteTrialConfig
from erl_pipeline.config.prompts import PromptTemplates

FIRST_ATTEMPT = "first_attempt"
PROPOSAL = "proposal"
"""A new instruction, written by the policy after a failed attempt."""


class InstructionTemplates(PromptTemplates):
    """Prompts as Jinja templates. `instructions` and `observation` are what the environment says first;
    `trace`, `feedback` and `reward` are those of the failed attempt."""

    second_attempt: str = "{{ instructions }}{% for note in notes %}\n\n{{ note }}{% endfor %}"
    """System message of an attempt with an instruction; the user message is the observation. `notes`: the
    instruction. Variables: instructions, observation, notes."""
    retry: str = "{{ instructions }}"
    """Has no use in this method, which tries no task again. Variables: instructions, observation, trace,
    feedback, reward, notes."""
    reflection_system: str = (
        "You improve the instruction that a player of many similar tasks is given. You see one attempt that "
        "did not succeed. Say what a player must know and do in any such task, in at most eight sentences. "
        "Keep what was right in the instruction so far. Write the new instruction only; players see it "
        "instead of the old one."
    )
    """System message that asks for a new instruction. Variables: none."""
    reflection: str = (
        "The task was told as follows.\n{{ instructions }}"
        "{% for note in memory %}\n\nThe instruction so far:\n{{ note }}{% endfor %}"
        "\n\nThe attempt:\n{{ trace }}"
        '\n\nReward: {{ "%g" | format(reward) }}\nFeedback: {{ feedback }}'
    )
    """User message that asks for a new instruction. `memory`: the instruction of the attempt; none before the
    first. Variables: instructions, observation, trace, feedback, reward, memory."""


class PromptEvolutionEpisodeSettings(PluginSettings):
    """What an episode depends on."""

    type: Literal["prompt_evolution"] = "prompt_evolution"
    reflections: int = Field(default=1, ge=1)
    """After how many of the attempts at a task, if they fail, the policy proposes a new instruction."""
    instruction_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of an instruction; null: `sampling.max_new_tokens`. First prompts grow by as many, so leave
    room for them in the policy's context."""
    prompts: InstructionTemplates = InstructionTemplates()
    """Prompts of the policy, for environments that have no prompts of their own."""


class PromptEvolutionConfig(PromptEvolutionEpisodeSettings):
    """Prompt evolution, after GEPA (arXiv 2507.19457), without its Pareto front: the weights stay as they
    are, and what changes is an instruction in the prompt of first attempts."""

    instruction_per: InstructionPer = "policy"
    """`policy`: one instruction for all tasks. `task_type`: one for each type of task, tried on tasks of that
    type."""
    candidates: int = Field(default=4, ge=1)
    """The most proposals that are tried in an iteration, of all types together: those that were written most
    often, then the earliest."""
    tasks: int = Field(default=8, ge=1)
    """On how many training tasks they are tried, all on the same ones; with `instruction_per: task_type`, so
    many of each type. The seed draws them anew in each iteration, and no proposal was written on one of
    them."""
    attempts: int = Field(default=2, ge=1)
    """Attempts at each of them with each proposal, and as many with the instruction so far, with the same
    seeds."""
    margin: float = Field(default=0.0, ge=0.0)
    """A proposal can take the place of the instruction if its mean reward is higher by more than this."""

    @property
    def trials(self) -> NoteTrialConfig:
        """How proposals are tried."""
        return NoteTrialConfig(
            notes=self.candidates,
            tasks=self.tasks,
            attempts=self.attempts,
            margin=self.margin,
            failures=True,  # No proposal has led to an attempt yet.
        )


def episode_settings(settings: PromptEvolutionEpisodeSettings) -> PromptEvolutionEpisodeSettings:
    return PromptEvolutionEpisodeSettings(
        **{name: getattr(settings, name) for name in PromptEvolutionEpisodeSettings.model_fields}
    )


def first_attempt_settings(settings: PromptEvolutionEpisodeSettings) -> PromptEvolutionEpisodeSettings:
    shown = InstructionTemplates(second_attempt=settings.prompts.second_attempt)
    return PromptEvolutionEpisodeSettings(prompts=shown)

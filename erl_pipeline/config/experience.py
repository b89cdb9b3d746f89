"""Settings of experience: lessons that a trained extractor writes.

Sources: *paper* is arXiv 2603.17621 v2, *code* its official implementation (github.com/pUmpKin-Co/
ComplementaryRL, `examples/singletask-agentic/single_task_complementaryrl.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.memory import KeepSettings, RetrievalSettings
from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.config.prompts import check_template
from erl_pipeline.config.rollouts import LEAST_TEMPERATURE

EXTRACTOR = "extractor"
"""The model that writes experience, beside the policy."""

_VARIABLES: Mapping[str, Mapping[str, Any]] = {
    "lessons": {"lessons": ["Open it."]},
    "extraction_system": {"max_operations": 3},
    "extraction": {
        "instructions": "Act.",
        "observation": "A door.",
        "turns": [{"role": "assistant", "content": "open"}],
        "feedback": "It failed.",
        "reward": 0.0,
        "lessons": ["Open it."],
    },
    "merging_system": {},
    "merging": {"texts": ["Open it.", "Open the door."]},
}
"""The variables of each template, with examples."""


class ExperienceTemplates(Settings):
    """Prompts as Jinja templates."""

    lessons: str = (
        "\n\nLessons from earlier episodes (they may be wrong here):"
        "{% for lesson in lessons %}\n- {{ lesson }}{% endfor %}"
    )
    """Text after the environment's instructions in the system message of a guided attempt. It is removed
    again before the extractor reads the episode. Variables: lessons."""
    extraction_system: str = (
        "You keep a collection of lessons for an agent. You read one of its episodes, which may have "
        "succeeded or failed, and the lessons that it was given for it. Say what should become of the "
        "collection, with at most {{ max_operations }} operations in a JSON list:\n"
        '<answer>[{"operation": "add", "text": "a new lesson"}, '
        '{"operation": "update", "lessons": [1], "text": "what takes the place of lesson 1"}, '
        '{"operation": "return"}]</answer>\n'
        "`return` alone leaves everything as it is. A lesson is general, true of what was seen, short, and "
        "understood without the episode."
    )
    """System message that asks the extractor for experience. Variables: max_operations."""
    extraction: str = (
        "The task was told as follows.\n{% if instructions %}{{ instructions }}\n{% endif %}{{ observation }}"
        "\n\nThe episode:{% for turn in turns %}\n[{{ turn.role }}] {{ turn.content }}{% endfor %}"
        '\n\nReward: {{ "%g" | format(reward) }}\nFeedback: {{ feedback }}'
        "{% if lessons %}\n\nThe lessons that were given:"
        "{% for lesson in lessons %}\n{{ loop.index }}. {{ lesson }}{% endfor %}{% endif %}"
    )
    """User message with the episode. Variables: instructions, observation, turns (each with role and
    content, which has its tool calls too), feedback, reward, lessons."""
    merging_system: str = (
        "You keep a collection of lessons for an agent. You read some of them. Keep what is useful as it is, "
        "make one lesson of those that say the same or belong together, and leave out what is wrong or "
        "useless. Answer with the lessons that remain, as a JSON list of texts:\n"
        '<answer>["a lesson", "another lesson"]</answer>\n'
        "An empty list leaves everything as it is."
    )
    """System message that asks the extractor to merge. Variables: none."""
    merging: str = "{% for text in texts %}{{ loop.index }}. {{ text }}\n{% endfor %}"
    """User message with the lessons. Variables: texts."""

    @field_validator("*")
    @classmethod
    def _can_be_rendered(cls, template: str, info: ValidationInfo) -> str:
        assert info.field_name is not None
        return check_template(info.field_name, template, _VARIABLES[info.field_name])


class ExtractorConfig(Settings):
    """The model that reads episodes and writes experience; it has weights, an optimizer and a schedule of its
    own (paper, section 3.3)."""

    model: str | None = Field(default=None, min_length=1)
    """Folder or hub name of a pretrained model; `null`: it starts from the same checkpoint as a pretrained
    policy, or from its own cold start with the tiny policy. Paper: a reasoning model of about half the
    policy's size."""
    cold_start: ColdStartConfig | None = None
    """Cold start of the tiny extractor; `null` takes the policy's settings."""
    max_tokens: int = Field(default=8, ge=1)
    """Most tokens of one answer on an episode. The default suits the tiny extractor; code: 8,192."""
    max_merge_tokens: int = Field(default=48, ge=1)
    """Most tokens of one answer on entries that are to be merged."""
    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE, le=2.0)
    """Sampling temperature of both kinds of answer (code: 1.0; its top-p of 0.99 is not offered, see
    `sampling`)."""
    max_operations: int = Field(default=3, ge=1)
    """Most operations in one answer (code: 3); an answer with more is ill-formed."""
    train: bool = True
    """`false` freezes it: the control that shows what its training is worth."""
    batch: int = Field(default=64, ge=2)
    """Requests with credit that an update waits for and trains on. Where there are more, those credited
    longest ago are left out (paper: 64; code: a buffer of 64 that drops the oldest)."""
    clip: float = Field(default=0.1, gt=0.0, lt=1.0)
    """The ratio of CISPO is clipped to 1 - `clip` and 1 + `clip` (paper, eq. 3). It is taken against the
    log-probabilities that were stored when the text was sampled; the code recomputes them before its one
    step, so that its clip never acts."""
    credit_per: Literal["entry", "request"] = "entry"
    """What counts as one sample of an update, with the mean of its credits as reward: each `entry` (paper),
    or each `request`, whose answer may have brought several entries (code)."""
    optimizer: OptimizerConfig | None = None
    """`null` takes the same settings as the policy's (paper and code: 1e-6 for both)."""


class ExperienceConfig(Settings):
    """Lessons that a second model, the extractor, writes on the episodes of the policy, and is trained on by
    what they were worth to those that saw them (Complementary RL, arXiv 2603.17621)."""

    extractor: ExtractorConfig = ExtractorConfig()
    withhold: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of a group, drawn by the seed, whose members are `free`: they see no experience. The others are
    `guided` (paper: K/2 and K/2). Advantages compare rewards of one half alone, see
    `objective.advantages_per`."""
    embedding_model: str = "all-MiniLM-L6-v2"
    """As `memory.embedding_model` of ERL (paper: Qwen3-Embedding-0.6B)."""
    key: Literal["text", "situation"] = "text"
    """The text by which an entry is found for a task: its own `text` (paper), or the `situation` of the
    episode that it comes from (code)."""
    top_k: int = Field(default=1, ge=1, le=32)
    """Entries shown at a time (paper and code: 1)."""
    retrieval_penalty: float = Field(default=0.4, ge=0.0)
    """lambda: entries are ranked by similarity - lambda x ln(1 + times shown) (paper, eq. 6; code: 0.4, with
    the rank in place of the similarity). With 0 and no dropout, entries are ranked by similarity alone."""
    oversampling: int = Field(default=16, ge=1)
    """Candidates that are ranked, for each entry that is shown (code: 16)."""
    max_entries: int = Field(default=20_000, ge=1)
    """Most entries in the memory; beyond that, those whose text was written longest ago are removed (code:
    FIFO of 20,000)."""
    merge_every: int | None = Field(default=5, ge=1)
    """Updates of the policy between two merges (paper and code: 5); `null`: never."""
    merge_chunk: int = Field(default=5, ge=2)
    """Entries that the extractor reads together when it merges (paper and code: 5); what it wrote is read
    again with the next ones."""

    def retrieval(self, spare: int = 0) -> RetrievalSettings:
        """How the memory is searched. `spare`: entries beyond those that are shown."""
        return RetrievalSettings(
            embedding_model=self.embedding_model,
            top_k=self.top_k + spare,
            same_task_type=True,
            withhold=self.withhold,
            credit_weight=0.0,
            support_weight=0.0,
            retrieval_penalty=self.retrieval_penalty,
            candidates=self.oversampling * self.top_k if self.retrieval_penalty else None,
            min_similarity=None,
            fallback=None,
        )

    def keep(self) -> KeepSettings:
        """What the memory keeps."""
        return KeepSettings(
            embedding_model=self.embedding_model,
            merge_similarity=None,
            max_entries=self.max_entries,
            evict="oldest",
        )


class ExtractedConfig(ExperienceConfig):
    """The same beside a method that has none of its own."""

    prompts: ExperienceTemplates = ExperienceTemplates()
    """Prompts of the extractor, for environments that have no prompts of their own."""


@dataclass(frozen=True)
class Lessons:
    """Where a run has an extractor: its settings, the prompts, and the key of the settings, beside the method
    or in it."""

    settings: ExperienceConfig
    prompts: ExperienceTemplates
    key: Literal["experience", "method.experience"]


def require_extractable(
    lessons: Lessons,
    method: PluginSettings,
    environment: PluginSettings,
    policy: PluginSettings,
    engine: PluginSettings,
) -> None:
    """Raise ValueError, which names both settings, where the method cannot use lessons, or there is no model
    that could write them."""
    key, extractor = lessons.key, lessons.settings.extractor
    world = plugins("environments")[environment.type].value
    if key == "experience" and not plugins("methods")[method.type].value.takes_experience:
        raise ValueError(
            f"experience: method {method.type} cannot be combined with it: its attempts search no "
            "memory, or it has an extractor already (complementary: method.experience); allowed is erl"
        )
    if key == "experience" and world.has_agents(environment):
        raise ValueError(
            f"experience: on; environment.type: {environment.type} runs agents, and the extractor "
            "reads one token sequence of each attempt; set experience: off"
        )
    if plugins("policies")[policy.type].value.traits(policy).own_words:
        if extractor.model is not None:
            raise ValueError(
                f"{key}.extractor.model: {extractor.model}; allowed with policy.type: tiny is null: the "
                "extractor must read and write the words of the tiny policy, and gets a cold start of its own"
            )
        if world.tiny.extractor(environment) is None:
            raise ValueError(
                f"{key}: on needs a model for its extractor; with policy.type: tiny these settings of "
                f"environment.type: {environment.type} give none (FrozenLake: format: compact with "
                f"action_mode: step). Allowed are those, a pretrained policy, or {key}: off"
            )
    elif extractor.cold_start is not None:
        raise ValueError(
            f"{key}.extractor.cold_start is for policy.type: tiny; leave it out with policy.type: "
            f"pretrained, or name a model in {key}.extractor.model"
        )
    because = plugins("engines")[engine.type].value.one_model_because(engine)
    if because is not None:
        raise ValueError(
            f"engine.{because}: these servers serve one model, and {key}: on samples from two; leave it out, "
            f"so that each model gets a server of its own, or set {key}: off"
        )

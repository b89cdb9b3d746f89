"""Settings of Complementary RL, and the roles of its trajectories.

Sources: *paper* is arXiv 2603.17621 v2, *code* its official implementation (github.com/pUmpKin-Co/
ComplementaryRL, `examples/singletask-agentic/single_task_complementaryrl.yaml`).
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.memory import KeepSettings, RetrievalSettings
from erl_pipeline.config.optimizer import OptimizerConfig
from erl_pipeline.config.policy import ColdStartConfig
from erl_pipeline.methods.complementary.prompts import ExperienceTemplates

CALLS_FILE = "extractor_calls.parquet"
CREDITS_FILE = "credits.parquet"
SCORES_FILE = "scores.parquet"
SCORER_FILE = "scorer.safetensors"

CALLS = "calls"
"""What the extractor was asked and wrote in an iteration."""
CREDIT = "credits"
"""The newest credits, and through them the chain of earlier ones."""
MERGED = "merged"
"""The memory version that a merge wrote after the previous credits, with the extractor's answers."""
SCORES = "scores"
"""The newest scores of the variant `weights`, and through them the chain of earlier ones."""

FIRST_ATTEMPT = "first_attempt"
EXTRACTION = "extraction"
"""What the extractor wrote on an episode."""
MERGE = "merge"
"""What the extractor wrote on entries of the memory."""

REPLAY = "replay"
"""A stored attempt that is trained on again, with the variant `weights`."""

EXTRACTOR = "extractor"
"""The model that writes experience, beside the policy."""


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
    temperature: float = Field(default=1.0, gt=0.0, le=2.0)
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


class CrlExperienceConfig(Settings):
    """Experience as in the paper: texts of a trained extractor, in a memory that first attempts see."""

    type: Literal["crl"] = "crl"
    extractor: ExtractorConfig = ExtractorConfig()
    withhold: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of a group, drawn by the seed, whose attempts are `free`: they see no experience. The others are
    `guided` (paper: K/2 and K/2). Advantages compare rewards of one half alone, see
    `objective.advantages_per`."""
    embedding_model: str = "all-MiniLM-L6-v2"
    """As `memory.embedding_model` of ERL (paper: Qwen3-Embedding-0.6B)."""
    key: Literal["text", "situation"] = "text"
    """The text by which an entry is found for a task: its own `text` (paper), or the `situation` of the
    episode that it comes from (code)."""
    top_k: int = Field(default=1, ge=1, le=32)
    """Entries shown to one attempt (paper and code: 1)."""
    retrieval_penalty: float = Field(default=0.4, ge=0.0)
    """lambda: entries are ranked by similarity - lambda x ln(1 + times shown) (paper, eq. 6; code: 0.4, with
    the rank in place of the similarity). With 0 and `dropout: 0`, entries are ranked by similarity alone."""
    oversampling: int = Field(default=16, ge=1)
    """Candidates that are ranked, for each entry that is shown (code: 16)."""
    dropout: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Probability that the best entry moves to the end of the ranking (code: 0.5, only for entries shown in
    the last 300 s; here for all, so that a run can be repeated)."""
    max_entries: int = Field(default=20_000, ge=1)
    """Most entries in the memory; beyond that, those whose text was written longest ago are removed (code:
    FIFO of 20,000)."""
    merge_every: int | None = Field(default=5, ge=1)
    """Updates of the policy between two merges (paper and code: 5); `null`: never."""
    merge_chunk: int = Field(default=5, ge=2)
    """Entries that the extractor reads together when it merges (paper and code: 5); what it wrote is read
    again with the next ones."""
    warmup_iterations: int = Field(default=5, ge=0)
    """Number of first iterations in which experience is gathered and the policy is not trained (code: 5)."""
    evaluate: bool = True
    """Also evaluate held-out first attempts that see experience, in a column of their own."""


class WeightsExperienceConfig(Settings):
    """A simplified variant that practitioners' guides describe; it is in no paper.

    A small network (MLP) on embeddings of stored trajectories says how much each is worth training on. Its
    weight multiplies the losses of the trajectory, without gradient. No value network tells whether training
    on a trajectory was worth it. The label is therefore 1 where the policy's own mean log-probability of it
    is higher now than when it was sampled, else 0.
    """

    type: Literal["weights"]
    embedding_model: str = "all-MiniLM-L6-v2"
    """As `memory.embedding_model` of ERL."""
    layers: int = Field(default=1, ge=1, le=2)
    """Hidden layers of the network."""
    width: int = Field(default=64, ge=64, le=256)
    """Units of each hidden layer."""
    learning_rate: float = Field(default=1e-3, gt=0.0)
    """Learning rate of the network's AdamW."""
    steps: int = Field(default=10, ge=1)
    """Training steps of the network in an iteration, each on all `rescored` trajectories."""
    loss_weight: float = Field(default=0.5, ge=0.0)
    """Weight of the binary cross-entropy of weights and labels."""
    distance_weight: float = Field(default=0.1, ge=0.0)
    """Weight of the mean of |weight - label|."""
    neutral: float = Field(default=0.5, gt=0.0, lt=1.0)
    """The weight of trajectories that were not scored yet, such as all fresh ones of the first iteration."""
    rescored: int = Field(default=1000, ge=1)
    """How many of the newest stored trajectories are scored again in an iteration."""
    sampled: int = Field(default=32, ge=0)
    """Stored trajectories that are trained on again beside the fresh ones, drawn by weight."""
    capacity: int = Field(default=100_000, ge=1)
    """How many of the newest stored trajectories can be drawn."""


ExperienceConfig = Annotated[CrlExperienceConfig | WeightsExperienceConfig, Field(discriminator="type")]


def _experience(value: Any) -> Any:
    """Accept `off`, `on`, or the bare name of a kind."""
    if value is False:
        return None
    if value is True:
        return {"type": "crl"}
    if isinstance(value, str):
        return {"type": value}
    return {"type": "crl", **value} if isinstance(value, dict) else value


class ComplementaryConfig(PluginSettings):
    """Complementary RL (arXiv 2603.17621): the policy learns with experience that a second model writes,
    which is trained beside it. For the paper's advantages leave `objective.advantage_normalization: std`; the
    code has `mean`."""

    type: Literal["complementary"] = "complementary"
    experience: Annotated[ExperienceConfig | None, BeforeValidator(_experience)] = CrlExperienceConfig()
    """`crl`, or `weights`: a simplified variant. `off`: the policy learns without experience, as a
    control."""
    prompts: ExperienceTemplates = ExperienceTemplates()
    """Prompts of the two models, for environments that have no prompts of their own."""

    @property
    def crl(self) -> CrlExperienceConfig | None:
        """The settings of experience as in the paper; None with another kind."""
        return self.experience if isinstance(self.experience, CrlExperienceConfig) else None


class ComplementaryEpisodeSettings(PluginSettings):
    """What an episode depends on."""

    type: Literal["complementary"] = "complementary"
    top_k: int
    dropout: float
    prompts: ExperienceTemplates


def episode_settings(settings: ComplementaryConfig) -> ComplementaryEpisodeSettings:
    """The settings of episodes. How experience is made affects episodes only through the memory."""
    crl = settings.crl
    return ComplementaryEpisodeSettings(
        top_k=1 if crl is None else crl.top_k,
        dropout=0.0 if crl is None else crl.dropout,
        prompts=settings.prompts,
    )


def retrieval_settings(settings: ComplementaryConfig) -> RetrievalSettings | None:
    """How the memory is searched. With dropout one more entry is retrieved, which may replace the best
    one."""
    crl = settings.crl
    if crl is None:
        return None
    return RetrievalSettings(
        embedding_model=crl.embedding_model,
        top_k=crl.top_k + (crl.dropout > 0.0),
        same_task_type=True,
        withhold=crl.withhold,
        credit_weight=0.0,
        support_weight=0.0,
        retrieval_penalty=crl.retrieval_penalty,
        candidates=crl.oversampling * crl.top_k if crl.retrieval_penalty else None,
        min_similarity=None,
        fallback=None,
    )


def keep_settings(settings: CrlExperienceConfig) -> KeepSettings:
    return KeepSettings(
        embedding_model=settings.embedding_model,
        merge_similarity=None,
        max_entries=settings.max_entries,
        evict="oldest",
    )

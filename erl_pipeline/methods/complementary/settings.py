"""Settings of Complementary RL, and the roles of its trajectories.

Sources: *paper* is arXiv 2603.17621 v2, *code* its official implementation (github.com/pUmpKin-Co/
ComplementaryRL, `examples/singletask-agentic/single_task_complementaryrl.yaml`).
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from erl_pipeline.config.base import PluginSettings, Settings
from erl_pipeline.config.experience import ExperienceConfig, ExperienceTemplates
from erl_pipeline.config.memory import RetrievalSettings

SCORES_FILE = "scores.parquet"
SCORER_FILE = "scorer.safetensors"

SCORES = "scores"
"""The newest scores of the variant `weights`, and through them the chain of earlier ones."""

FIRST_ATTEMPT = "first_attempt"

REPLAY = "replay"
"""A stored attempt that is trained on again, with the variant `weights`."""


class CrlExperienceConfig(ExperienceConfig):
    """Experience as in the paper: texts of a trained extractor, in a memory that first attempts see."""

    type: Literal["crl"] = "crl"
    dropout: float = Field(default=0.5, ge=0.0, lt=1.0)
    """Probability that the best entry moves to the end of the ranking (code: 0.5, only for entries shown in
    the last 300 s; here for all, so that a run can be repeated)."""
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
    """How many of the stored trajectories are scored again in an iteration."""
    rescore: Literal["newest", "random"] = Field(
        default="newest", exclude_if=lambda rescore: rescore == "newest"
    )
    """Which: the newest, or random ones of those that can be drawn (as in the guide)."""
    sampled: int = Field(default=32, ge=0)
    """Stored trajectories that are trained on again beside the fresh ones, drawn by weight."""
    capacity: int = Field(default=100_000, ge=1)
    """How many of the newest stored trajectories can be drawn."""


_Experience = Annotated[CrlExperienceConfig | WeightsExperienceConfig, Field(discriminator="type")]


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
    experience: Annotated[_Experience | None, BeforeValidator(_experience)] = CrlExperienceConfig()
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
    return None if crl is None else crl.retrieval(spare=int(crl.dropout > 0.0))

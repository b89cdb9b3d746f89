"""Settings of the order of a run's stages, of the resources that they use, and of the store: where artifacts
are, what is kept of them, and when a run warns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from erl_pipeline.config.base import Settings
from storage.artifacts.cache import CacheSettings
from storage.errors import InputError
from storage.filesystem import MOST_CONNECTIONS
from storage.upkeep.rules import Kept, RetentionRule, parse_rule


class PipelineConfig(Settings):
    """The order of the stages. It is part of the plan, so artifacts depend on it."""

    lag: int = Field(default=0, ge=0, le=16)
    """Iteration i samples from the checkpoint of iteration i - 1 - lag, so that rollouts and training can run
    at the same time on two devices. More than 0 needs `objective.correction: {type: decoupled}`, which
    weights each token by how likely it is under the current policy. The bytes do not depend on which stages
    run at the same time."""
    max_age: int | None = Field(default=None, ge=0)
    """The largest age of a trajectory in a reinforcement-learning update; `null`: no limit. The age is how
    many iterations the policy that sampled it is behind the policy that is updated. Fresh trajectories have
    the age `lag`, so the lag may not be larger. For replay (ExGRPO) too, the age is that of the policy that
    sampled: in the update of iteration i, an attempt of iteration s has the age i - s + lag, or less in the
    first iterations. If the current policy was not trained from the one that sampled, such as that of another
    run, the trajectory counts as too old. The limit does not apply to supervised stages and to the training
    of an extractor."""
    too_old: Literal["wait", "drop"] = "wait"
    """How `max_age` is enforced. `wait`: by the plan. Rollouts wait for a policy that is young enough. A run
    whose updates could get older trajectories is refused; with replay, that is the case if
    `replay.max_age` plus the lag is more than `max_age`. `drop`: by the update. It leaves out what is
    too old before rewards are compared; the training record says `too_old`, and `dropped_too_old` counts
    them. Use this for replay and for stored rollouts (`replay --offline`), whose age cannot change."""

    @model_validator(mode="after")
    def _possible_together(self) -> PipelineConfig:
        if self.max_age is None:
            if self.too_old == "drop":
                raise ValueError("too_old: drop; it needs max_age, since without one nothing is too old")
        elif self.lag > self.max_age:
            raise ValueError(
                f"lag: {self.lag}; allowed with max_age: {self.max_age} is at most {self.max_age}, since no "
                f"fresh trajectory would be young enough from iteration {self.max_age + 2} on; lower "
                "pipeline.lag, or raise pipeline.max_age"
            )
        return self


@dataclass(frozen=True)
class NodesToFind:
    """How many machines a runner has to find for each training, besides the one that computes its stage, and
    how many of the trainer's processes are on each machine."""

    count: int
    processes: int


NO_NODES_TO_FIND = NodesToFind(count=0, processes=1)
"""For a trainer with one process on the machine of its stage."""


class DeviceGroups(Settings):
    """Which GPUs sample and which train, so that rollouts and updates (`pipeline.lag`) can run at the same
    time on one machine, each over several GPUs. GPUs are named by their numbers from 0, or by their places in
    `CUDA_VISIBLE_DEVICES` where the command has that. Ray chooses the GPUs itself, so with `runner.type: ray`
    only how many there are in each group counts, and the groups may be on different machines."""

    sample: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """GPUs of rollouts, evaluation and extraction: of the engine, and of the servers that it starts."""
    train: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)
    """GPUs of updates, fine-tuning, the warm start and scoring by the trainer. Each process of `trainer:
    fsdp2` on a machine needs one of its own."""

    @model_validator(mode="after")
    def _each_once(self) -> DeviceGroups:
        named = [*self.sample, *self.train]
        twice = sorted({number for number in named if named.count(number) > 1})
        if twice:
            raise ValueError(
                f"GPU {', '.join(map(str, twice))} is named twice; a GPU either samples or trains, so name "
                "each once"
            )
        return self

    def of_worker(self, number: int) -> tuple[int, ...]:
        """The GPUs of a worker: the first samples, the second trains, and others have none of their own."""
        return (self.sample, self.train)[number] if number < 2 else ()


class ResourcesConfig(Settings):
    """The resources that a run may use. No artifact's id depends on them, and a run can be continued with
    others, but bytes depend on `threads` and `determinism`."""

    threads: int = Field(default=2, ge=1, le=256)
    """CPU threads of torch in each process. Bytes are reproducible for a fixed number of threads."""
    devices: int = Field(default=1, ge=1, le=64)
    """How many stages may compute with a model at the same time, each on its own device. On a machine without
    GPU the processor counts as one device; with more, they share its cores."""
    groups: DeviceGroups | None = None
    """Which GPUs sample, and which train, instead of `devices`, such as `{sample: [0, 1, 2, 3], train: [4, 5,
    6, 7]}`. Needs worker processes: `runner: {type: prefect, task_runner: processes, workers: 2}`, or
    `runner.type: ray`. `null`: a GPU does both."""
    determinism: Literal["approximate", "bytes"] = "approximate"
    """`bytes`: GPUs compute with settings under which equal work should give equal bytes, and more slowly:
    torch's deterministic algorithms, a fixed cuBLAS workspace, one NCCL algorithm, and vLLM's batch
    invariance in servers that the run starts. What cannot keep this is refused. `approximate`: GPUs may add
    up in any order. CPUs give equal bytes with both. This was never measured on a GPU."""
    full_disk: Literal["refuse", "warn"] = "refuse"
    """What happens if the next iteration is expected to need more space than is free in the store's folder.
    `refuse`: the run stops before it, so that nothing is lost, and the same command continues it once there
    is room. `warn`: it goes on. The expected size is what the stages took before, or is computed from the
    model's size."""

    @model_validator(mode="after")
    def _one_says_how_many(self) -> ResourcesConfig:
        if self.groups is not None and self.devices > 1:
            raise ValueError(
                f"devices: {self.devices} cannot be combined with groups, with which one worker samples and "
                "one trains; leave devices out"
            )
        return self


class StoreConfig(Settings):
    """How a machine reads and writes a store: the first two settings are for a store in a bucket, the last is
    for one in a folder. The store's address is not a setting but an option (`--store`). No artifact's id
    depends on these settings, and a run can be continued with others."""

    cache_gb: float | None = Field(default=None, gt=0)
    """Gigabytes (10^9 bytes) of artifacts that each machine caches for all its processes together, so that
    none is downloaded twice; `null`: no limit. Beyond the limit, artifacts that no process uses are removed,
    the least recently used first. Artifacts that a stage is reading stay, so the cache is larger for a while
    if they alone need more. Files that are being written are not counted."""
    connections: int = Field(default=8, ge=1, le=MOST_CONNECTIONS)
    """How many transfers each process makes at the same time: small files as a whole, large ones in parts of
    16 MiB. Each part takes about twice its size in memory."""
    background_commit_mb: float | None = Field(default=16.0, ge=0)
    """Artifacts of at least so many megabytes (10^6 bytes) are hashed, flushed to disk and committed while
    the next stage reads them already; smaller ones are committed before it begins. `null`: every artifact is
    committed before the next stage begins."""

    def background_bytes(self) -> int | None:
        """The last setting in bytes."""
        return None if self.background_commit_mb is None else int(self.background_commit_mb * 1e6)

    def cache(self) -> CacheSettings:
        """The same settings in the form that the store takes."""
        limit = None if self.cache_gb is None else int(self.cache_gb * 1e9)
        return CacheSettings(limit, self.connections)


_ORIGIN = "retention."


def _as_text(value: Any) -> Any:
    """The rule as text: YAML reads a rule such as `3` as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _require_rule(text: str) -> str:
    try:
        return parse_rule(text, _ORIGIN).text
    except InputError as error:
        raise ValueError(str(error)) from error


Rule = Annotated[str, BeforeValidator(_as_text), AfterValidator(_require_rule)]
"""`N`, `every:K` or `N,every:K`."""


class RetentionConfig(Settings):
    """What a run keeps of its old iterations. Each kind of file has a rule: the last `N` iterations;
    `every:K`, which keeps those that K divides and the last; or both, as in `2,every:10`. `null` keeps all.
    The driver applies the rules after each iteration, and scheduled maintenance applies them too. A file is
    removed only if no other run's ledger names its artifact and nothing is still to be made from it.
    Manifests, ids and lineage stay. No artifact depends on these rules, and a run can be continued with
    others; removed files do not come back."""

    checkpoints: Rule | None = None
    """Weights. Old ones are needed to evaluate, branch from or audit old iterations."""
    optimizer: Rule | None = None
    """States of the optimizer, often larger than the weights. Old ones are needed only to branch from old
    iterations or audit their updates."""
    optimizer_every: int = Field(default=1, ge=1)
    """Commit the state of the optimizer only with the checkpoints that end each iteration that this number
    divides, and the last iteration; the other checkpoints have weights alone. In between, the process that
    trains keeps the state in memory. A run that is continued after that process has ended repeats the
    updates since the last committed state, from committed rollouts, and stops if one does not give its
    committed bytes. So more than 1 needs updates that repeat bit for bit, `trainer.type: local` on a CPU; and
    one process that trains, that is `resources.devices: 1` and a runner on this machine."""
    trajectories: Rule | None = None
    """Tokens and texts of rollouts; rewards, ids and what lineage needs are kept. A run that keeps experience
    to replay (ExGRPO, Complementary RL) keeps all its rollouts."""

    def rules(self) -> dict[Kept, RetentionRule]:
        given: dict[Kept, str] = self.model_dump(  # type: ignore[assignment]
            exclude_none=True, exclude={"optimizer_every"}
        )
        return {kind: parse_rule(text, _ORIGIN) for kind, text in given.items()}


WarningKind = Literal[
    "group_size", "no_advantage", "ill_formed", "cut_off", "not_scored", "entropy", "mismatch"
]
"""The kinds of warnings.

- `group_size`: `rollouts.group_size` is 1, so that no group has an advantage
- `no_advantage`: no trajectory of some iterations in a row had an advantage
- `ill_formed`: texts of a role, such as reflections, were ill-formed
- `cut_off`: completions ended at the limit of tokens
- `not_scored`: the environment or its scorer failed in many attempts
- `entropy`: the policy's entropy has collapsed
- `mismatch`: sampler and trainer disagree on log-probabilities
"""


class WarningsConfig(Settings):
    """When a run warns that it is not learning. Each kind of warning is given once: in the terminal or the
    log, by the trackers, and in the report; it is recorded beside the run's ledger. `null` switches a kind
    off. No artifact depends on these settings, and a run can be continued with other values."""

    no_advantage: int | None = Field(default=3, ge=1)
    """Warn after this many iterations in a row whose update had no trajectory with an advantage, because all
    rewards of each group were equal. `null` also switches off the warning about `rollouts.group_size: 1`."""
    ill_formed: float | None = Field(default=1.0, gt=0.0, le=1.0)
    """Warn when this share of an iteration's texts of one role, such as reflections, is ill-formed."""
    cut_off: float | None = Field(default=1.0, gt=0.0, le=1.0)
    """Warn when this share of an iteration's trajectories was cut off at the limit of tokens."""
    not_scored: float | None = Field(default=0.05, gt=0.0, le=1.0)
    """Warn when this share of an iteration's trajectories was not scored, since the environment or its scorer
    failed; nothing is learned from them."""
    entropy: float | None = Field(default=0.02, ge=0.0)
    """Warn when the mean entropy of an update's trained tokens is below this, in nats."""
    mismatch: float | None = Field(default=0.1, gt=0.0)
    """Warn when the mean difference of log-probabilities between sampler and trainer is above this, in nats
    per token."""
    stop_on: tuple[WarningKind, ...] = ()
    """Kinds after which the run stops, when the iteration is complete: `group_size`, `no_advantage`,
    `ill_formed`, `cut_off`, `not_scored`, `entropy`, `mismatch`. It goes on once the kind is removed from the
    list."""

"""What a rank of a configuration trains, as its simulation takes it, and what that gives back."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter

from erl_pipeline.config.objective import ObjectiveConfig
from erl_pipeline.config.optimizer import FineTuneConfig, OptimizerConfig, UpdateConfig
from erl_pipeline.config.policy import LoraConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.checkpoints import policy_traits
from erl_pipeline.sizing.formulas import distils, longest_sequence, training_processes
from erl_pipeline.sizing.recorder import Costs, Peak
from erl_pipeline.trainers.interface import DEFAULT_PASSES, Passes, PassSettings
from erl_pipeline.trainers.sequences import TrainingSequence
from storage.errors import InputError

GPU = "gpu"
"""The name of the device that stands for a GPU."""


@dataclass(frozen=True)
class SimulatedWork:
    """What a rank trains. All sequences have the same length; `group` of them share a prompt.

    `device`: `gpu`, or `cpu` for training on this processor. `processes`: None for the trainer `local`, else
    the number of ranks of `fsdp2`. `fine_tune` is None where no supervised update is made.
    """

    model: str
    dtype: str
    lora: LoraConfig | None
    optimizer: OptimizerConfig
    objective: ObjectiveConfig
    update: UpdateConfig
    fine_tune: FineTuneConfig | None
    sequences: int
    group: int
    prompt_tokens: int
    response_tokens: int
    device: str = GPU
    processes: int | None = None
    rank: int = 0
    passes: Passes = DEFAULT_PASSES
    head_dtype: str | None = None


@dataclass(frozen=True)
class UpdateReport:
    """What one update takes: `microbatches` are those of this rank, `waits_per_microbatch` those inside of a
    forward and backward pass."""

    costs: Costs
    optimizer_steps: int
    microbatches: int
    waits_per_microbatch: float


@dataclass(frozen=True)
class RankReport:
    """What a rank needs. `peaks`: by device, `cpu` being the host of a GPU. `updates`: by name, with what
    handing over to a checkpoint takes (`commit`)."""

    rank: int
    peaks: Mapping[str, Peak]
    updates: Mapping[str, UpdateReport]
    seconds: float


WORK: TypeAdapter[SimulatedWork] = TypeAdapter(SimulatedWork)
REPORT: TypeAdapter[RankReport] = TypeAdapter(RankReport)


def simulated_work(
    config: RunConfig,
    device: str = GPU,
    *,
    sequences: int | None = None,
    sequence_tokens: int | None = None,
    prompt_tokens: int | None = None,
) -> SimulatedWork:
    """The updates of an iteration with these settings.

    Args:
        sequences: default: the first attempts of an iteration.
        sequence_tokens: of prompt and response together; default: as in `estimate_memory`.
        prompt_tokens: default: a quarter of them.

    Raises InputError for a trainer that is neither `local` nor `fsdp2`, and for a policy without a
    config.json.
    """
    if config.trainer.type not in ("local", "fsdp2") or not isinstance(config.trainer, PassSettings):
        raise InputError(f"trainer.type: {config.trainer.type} cannot be simulated; local and fsdp2 can")
    traits = policy_traits(config.policy)
    if traits.model is None:
        raise InputError(f"policy.type: {config.policy.type} has no config.json, and cannot be simulated")
    tokens = sequence_tokens or longest_sequence(config)
    prompt = prompt_tokens or max(1, tokens // 4)
    if prompt >= tokens:
        raise InputError(f"a prompt of {prompt} tokens leaves no room for a response in {tokens} tokens")
    rollouts = config.rollouts
    return SimulatedWork(
        model=traits.model,
        dtype=traits.dtype,
        lora=traits.lora,
        optimizer=config.optimizer,
        objective=config.objective,
        update=config.update,
        fine_tune=config.fine_tune if distils(config) else None,
        sequences=sequences or rollouts.tasks_per_iteration * rollouts.group_size,
        group=rollouts.group_size,
        prompt_tokens=prompt,
        response_tokens=tokens - prompt,
        device=device,
        processes=training_processes(config),
        passes=config.trainer.passes,
        head_dtype=traits.head_dtype,
    )


def simulated_sequences(work: SimulatedWork) -> list[TrainingSequence]:
    """The sequences of the work: prompts differ in their first two tokens, all other tokens are 0."""
    response, mask = (0,) * work.response_tokens, (1,) * work.response_tokens
    logprobs = (0.0,) * work.response_tokens
    groups = -(-work.sequences // work.group)
    prompts = [
        (*divmod(number, 1000), *(0,) * work.prompt_tokens)[: work.prompt_tokens] for number in range(groups)
    ]
    return [
        TrainingSequence(
            trajectory_id=str(number),
            role="first_attempt",
            prompt_token_ids=prompts[number // work.group],
            response_token_ids=response,
            response_mask=mask,
            behaviour_logprobs=logprobs,
            advantage=1.0 if number % 2 else -1.0,
        )
        for number in range(work.sequences)
    ]


def simulate(work: SimulatedWork) -> RankReport:
    """Compute the work on fake tensors in a new process.

    Raises InputError where the trainers' code cannot run without values; it names the line.
    """
    done = subprocess.run(
        [sys.executable, "-m", "erl_pipeline.sizing.simulated_update"],
        input=WORK.dump_json(work),
        capture_output=True,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise InputError(f"the update cannot be simulated: {''.join(last)}")
    return REPORT.validate_json(done.stdout)

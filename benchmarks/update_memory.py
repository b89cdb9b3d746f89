"""Peak memory of one policy update on this machine, compared with what `erl-pipeline doctor --config` says.

    python benchmarks/update_memory.py configs/frozen_lake_smollm2.yaml
    python benchmarks/update_memory.py configs/frozen_lake_smollm2.yaml --set update.microbatch_tokens=2048

Run each measurement in a new process, since memory that was freed may stay with the process.
"""

from __future__ import annotations

import argparse
import json
import resource

import torch
from measurements import ResidentMemory

from erl_pipeline.config.loading.load import load_config
from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.adapters import add_fresh_adapter
from erl_pipeline.policies.kind import policy_traits
from erl_pipeline.policies.pretrained import load_policy
from erl_pipeline.sizing.formulas import estimate_memory, model_size
from erl_pipeline.trainers.interface import Reinforcement
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.sequences import TrainingSequence

PROMPT_TOKENS, GROUP = 512, 8


def sequences(config: RunConfig, vocabulary: int, prompts: int) -> list[TrainingSequence]:
    """Groups that each fill a microbatch: a prompt of 512 tokens, and 8 responses that share the rest."""
    response = (config.update.microbatch_tokens - PROMPT_TOKENS) // GROUP
    generator = torch.Generator().manual_seed(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(vocabulary, (number,), generator=generator).tolist())

    return [
        TrainingSequence(
            trajectory_id=f"{prompt}-{member}",
            role="first_attempt",
            prompt_token_ids=prompt_tokens,
            response_token_ids=tokens(response),
            response_mask=(1,) * response,
            behaviour_logprobs=(-8.0,) * response,
            advantage=1.0 if member % 2 else -1.0,
        )
        for prompt, prompt_tokens in enumerate(tokens(PROMPT_TOKENS) for _ in range(prompts))
        for member in range(GROUP)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--prompts", type=int, default=4, help="groups in the step")
    arguments = parser.parse_args()
    # Without the supervised update, whose settings could otherwise decide the estimate.
    config = load_config(arguments.config, [*arguments.set, "method.distillation=off"])
    assert config.policy.type == "pretrained"
    torch.set_num_threads(config.resources.threads)
    size = model_size(config)
    parts = [part for part in estimate_memory(config, size) if part.place != "sampler"]

    memory = ResidentMemory()
    before = memory.now()
    with memory:
        traits = policy_traits(config.policy)
        assert traits.model is not None
        policy = load_policy(traits.model, dtype=traits.dtype)
        if traits.lora is not None:
            add_fresh_adapter(policy.model, traits.lora, seed=0, base="")
        optimizer = PolicyOptimizer(policy.model, config.optimizer)
        batch = sequences(config, size.vocabulary, arguments.prompts)
        for _ in range(2):  # From the second step on, moments exist while gradients are summed.
            work = Reinforcement(batch, config.objective, config.update, seed=0)
            reinforce(Learner(policy.model, optimizer), work)
    measured, estimated = memory.peak - before, sum(part.bytes for part in parts)
    print(
        json.dumps(
            {
                "estimated_gb": round(estimated / 1e9, 3),
                "measured_gb": round(measured / 1e9, 3),
                "estimate_over_measured": round(estimated / measured, 3),
                "program_gb": round(before / 1e9, 3),
                "peak_rss_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3),
                "parts_gb": {part.name: round(part.bytes / 1e9, 3) for part in parts},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()

"""The processor's time to pack sequences into microbatches, in microseconds for each token.

    python benchmarks/packing_speed.py

Two batches: 1,024 responses of 2,000 tokens to 128 prompts of 200, and 4,096 responses of 64 tokens to 512
prompts of 100. `first` is the first packing of a batch, which also reads its numbers; an update packs the
same sequences several times. `one of 8` is the first packing by one of eight ranks, which builds only its
own microbatches.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence

import torch

from erl_pipeline.trainers.local.packing import plan_segments
from erl_pipeline.trainers.sequences import TrainingSequence

RUNS = 5
MICROBATCH_TOKENS = 16_384
BATCHES = {"long": (128, 8, 200, 2000), "short": (512, 8, 100, 64)}


def batch(prompts: int, group: int, prompt_tokens: int, response_tokens: int) -> list[TrainingSequence]:
    """Groups of responses; lengths differ by a quarter, and every tenth token is the environment's."""
    draw = random.Random(0)
    found = []
    for number in range(prompts):
        prompt = tuple(draw.randrange(150_000) for _ in range(prompt_tokens))
        for member in range(group):
            length = draw.randint(response_tokens * 3 // 4, response_tokens)
            found.append(
                TrainingSequence(
                    trajectory_id=f"{number}-{member}",
                    role="attempt",
                    prompt_token_ids=prompt,
                    response_token_ids=tuple(draw.randrange(150_000) for _ in range(length)),
                    response_mask=tuple(int(place % 10 != 9) for place in range(length)),
                    behaviour_logprobs=(),
                    advantage=1.0,
                )
            )
    return found


def seconds(sequences: Sequence[TrainingSequence], ranks: int) -> float:
    """Time to plan a batch and to build what the first of the ranks computes."""
    started = time.process_time()
    for planned in plan_segments(sequences, MICROBATCH_TOKENS, torch.device("cpu"), "flash")[::ranks]:
        planned.build()
    return time.process_time() - started


def main() -> None:
    for name, sizes in BATCHES.items():
        first, again, part = [], [], []
        for _ in range(RUNS):
            sequences = batch(*sizes)
            tokens = sum(len(row.prompt_token_ids) + len(row.response_token_ids) for row in sequences)
            first.append(seconds(sequences, 1) / tokens * 1e6)
            again.append(seconds(sequences, 1) / tokens * 1e6)
            part.append(seconds(batch(*sizes), 8) / tokens * 1e6)
        shown = {"first": first, "again": again, "one of 8": part}
        print(name, {key: round(statistics.median(values), 4) for key, values in shown.items()})


if __name__ == "__main__":
    main()

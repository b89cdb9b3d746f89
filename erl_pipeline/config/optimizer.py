"""Settings of the optimizer and of the two updates that use it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from erl_pipeline.config.base import Settings

TrainingUse = Literal["reinforcement", "supervised"]
"""The purpose of optimizer steps: the reinforcement-learning update, or supervised training."""


class OptimizerConfig(Settings):
    """AdamW at a constant learning rate (arXiv 1711.05101), shared by both updates."""

    learning_rate: float = Field(default=3e-4, gt=0.0)
    """Step size; `fine_tune.learning_rate` may set another for supervised steps."""
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = (
        0.9,
        0.95,
    )
    """Decay rates of the first and the second moment."""
    eps: float = Field(default=1e-8, gt=0.0)
    """Added to the square root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled decay of matrices and embeddings; vectors (biases, norms) are never decayed."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients with a larger Euclidean norm are scaled down to it."""
    carry_state: bool = True
    """Carry the moments from stage to stage in the checkpoint. The fp32 copy of low-precision weights is
    always carried, since bf16 weights alone would lose small steps."""
    moments: Literal["shared", "by_use"] = "shared"
    """`shared`: both updates use the same moments, so that a reinforcement-learning step also moves along the
    supervised steps before it. `by_use`: each update has its own moments, for 8 more bytes per weight. If a
    branch changes this, the moments start from zero."""
    state_device: Literal["model", "cpu"] = "model"
    """Where the fp32 copy of the weights, their gradients and the moments are kept: 16 bytes per weight, 24
    with `moments: by_use`.
    `model`: on the device of the weights. `cpu`: in host memory, where the step is computed too, so that a
    GPU holds only the weights, the gradients of one pass and their sum: 8 bytes per weight. In return, the
    summed gradients move to the host once a step, and new weights move back. On a CPU both give the same
    bytes. `cpu` has not been run on a GPU yet."""


class MicrobatchConfig(Settings):
    """How an optimizer batch is split into passes; this changes the gradient only by rounding."""

    microbatch_tokens: int = Field(default=2048, ge=1)
    """The most input tokens in one forward and backward pass. A longer sequence is a pass by itself."""
    gradient_checkpointing: bool = False
    """Keep only the inputs of the blocks, and compute the rest again in the backward pass: slower, but takes
    less memory."""


class UpdateConfig(MicrobatchConfig):
    """The reinforcement-learning update."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the trajectories."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps in one pass over the trajectories. Sequences with the same prompt stay in one
    minibatch."""
    record_tokens: bool = False
    """Put the trainer's log-probability and entropy of each token into the training record, as lists. The
    record is then several times larger; nothing else changes."""

    @property
    def optimizer_steps(self) -> int:
        """The most optimizer steps of one update; there are fewer if there are fewer prompts than
        minibatches."""
        return self.epochs * self.minibatches


class FineTuneConfig(MicrobatchConfig):
    """The supervised update."""

    steps: int = Field(default=3, ge=1)
    """Optimizer steps; with `epochs`, the most of them."""
    epochs: float | None = Field(default=None, gt=0.0)
    """Passes over the rows, so that few rows get few steps: `epochs * rows / batch_rows` steps, rounded up,
    and no more than `steps`. `null`: `steps` steps, however few rows there are."""
    batch_rows: int | None = Field(default=None, ge=1)
    """Rows in one step, drawn without replacement until all were seen; `null`: each step takes all rows."""
    learning_rate: float | None = Field(default=None, gt=0.0)
    """Step size of supervised steps; `null` takes `optimizer.learning_rate`."""

    @model_validator(mode="after")
    def _rows_to_count(self) -> FineTuneConfig:
        if self.epochs is not None and self.batch_rows is None:
            raise ValueError(
                f"epochs: {self.epochs:g} with batch_rows: null; a step then takes all rows, so that "
                "steps cannot grow with them: set batch_rows, or leave epochs out"
            )
        return self

    def optimizer_steps(self, rows: int) -> int:
        """How many steps are taken on this many rows; 0 without rows."""
        if not rows:
            return 0
        if self.epochs is None or self.batch_rows is None:
            return self.steps
        # Use the decimal as written: 0.1 as a float is a little more, which would be rounded up.
        epochs = Fraction(str(self.epochs))
        return min(self.steps, math.ceil(epochs * rows / self.batch_rows))

"""Settings of the optimizer and of the two updates that use it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from erl_pipeline.config.base import Settings


class OptimizerConfig(Settings):
    """AdamW at a constant learning rate (arXiv 1711.05101), shared by both updates."""

    learning_rate: float = Field(default=3e-4, gt=0.0)
    """Step size."""
    betas: tuple[Annotated[float, Field(ge=0.0, lt=1.0)], Annotated[float, Field(ge=0.0, lt=1.0)]] = (
        0.9,
        0.95,
    )
    """Decay of the first and second moment."""
    eps: float = Field(default=1e-8, gt=0.0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled decay of matrices and embeddings; vectors (biases, norms) are never decayed."""
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """Gradients with a larger Euclidean norm are scaled down to it."""
    carry_state: bool = True
    """Carry the moments from stage to stage in the checkpoint. The fp32 copy of low-precision weights is
    always carried, since the bf16 weights alone would forget small steps."""
    state_device: Literal["model", "cpu"] = "model"
    """Where the fp32 copy of the weights, their summed gradients and the moments lie: 16 bytes a weight.
    `model`: beside the weights. `cpu`: in host memory, where the step is taken too, so that a GPU holds only
    the weights and the gradients of one pass; for that, gradients cross to the host in each pass and new
    weights come back after each step. On a CPU both are the same to the byte. It was not run on a GPU yet."""


class MicrobatchConfig(Settings):
    """How an optimizer batch is cut; none of it changes the gradient beyond rounding."""

    microbatch_tokens: int = Field(default=2048, ge=1)
    """Most input tokens in one forward and backward pass. A longer sequence makes a pass of its own."""
    gradient_checkpointing: bool = False
    """Keep the inputs of the blocks alone and compute the rest again in the backward pass: slower, less
    memory."""


class UpdateConfig(MicrobatchConfig):
    """The reinforcement-learning update."""

    epochs: int = Field(default=1, ge=1)
    """Passes over the trajectories."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps in one pass. Sequences with the same prompt stay in one minibatch."""
    record_tokens: bool = False
    """Put the trainer's log-probability and entropy of each token into the training record, as lists. The
    record is some times larger then; nothing else changes."""

    @property
    def optimizer_steps(self) -> int:
        """Most optimizer steps of one update; fewer where there are fewer prompts than minibatches."""
        return self.epochs * self.minibatches


class FineTuneConfig(MicrobatchConfig):
    """The supervised update."""

    steps: int = Field(default=3, ge=1)
    """Optimizer steps."""
    batch_rows: int | None = Field(default=None, ge=1)
    """Rows of one step, drawn without replacement until all were seen; `null` takes all rows in each step."""

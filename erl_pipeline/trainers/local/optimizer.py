"""AdamW whose state can be saved and restored bit for bit."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError, safe_open

from erl_pipeline.config.optimizer import OptimizerConfig, TrainingUse
from erl_pipeline.policies import checkpoint_files
from erl_pipeline.policies.checkpoints import OPTIMIZER_PROGRESS, OPTIMIZER_STATE, OPTIMIZER_STATE_FILES
from erl_pipeline.trainers.local.state_file import StateFile, file_parts, file_size
from storage.errors import InputError

_STATE = ("step", "exp_avg", "exp_avg_sq")
_BLOCK_ELEMENTS = 2**20  # 4 MiB of fp32
_USES: tuple[TrainingUse, ...] = get_args(TrainingUse)


class PolicyOptimizer:
    """AdamW (arXiv 1711.05101) over the trainable weights of a model.

    Weights of a low-precision model (bf16) have an fp32 copy here, the master weights: gradients of all
    microbatches are summed, and steps are taken, in fp32, and the model gets the rounded result. A
    bf16 weight has 8 bits of mantissa, so steps below 0.4 % of its size would otherwise be lost.

    With `state_device: cpu` the copy and the moments are in host memory, as in ZeRO-Offload
    (arXiv 2101.06840), and weights of any precision have such a copy; the CPU takes the step. Gradients are
    summed in fp32 on the device of the weights, and move once a step. Moves between devices were tested only
    with torch's fake tensors, not on a GPU.

    With `moments: by_use` each use has an AdamW of its own over the same weights; see `turn_to`.
    """

    def __init__(self, model: torch.nn.Module, config: OptimizerConfig) -> None:
        self.config = config
        self.steps = 0
        self._weights = self._trained_weights(model)
        self._masters = {name: self._master(weight) for name, weight in self._weights.items()}
        self._sums: dict[str, torch.Tensor] = {}  # gradients, fp32, on the device of the weights
        if config.moments == "shared":
            self._by_use = dict.fromkeys(_USES, self._new_adamw())
        else:
            self._by_use = {use: self._new_adamw() for use in _USES}
        self._adamw = self._by_use["reinforcement"]

    def _trained_weights(self, model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
        return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}

    def turn_to(self, use: TrainingUse, learning_rate: float | None = None) -> None:
        """Use the moments and the learning rate (None: the configuration's) of a use for the next steps."""
        self._adamw = self._by_use[use]
        for group in self._adamw.param_groups:
            group["lr"] = self.config.learning_rate if learning_rate is None else learning_rate

    def collect_gradients(self) -> None:
        """Add the gradients of the last backward pass to those of the fp32 copy, and drop them."""
        for name, weight in self._weights.items():
            if self._masters[name] is weight or weight.grad is None:
                continue
            if name in self._sums:
                _add(self._sums[name], weight.grad)
            else:
                self._sums[name] = weight.grad.float()
            weight.grad = None

    def hand_over_gradients(self) -> None:
        """Give the sums of the collected gradients to the fp32 copy, on its device."""
        for name, total in self._sums.items():
            master = self._masters[name]
            master.grad = total.to(master.device, non_blocking=True)  # from a GPU into pinned memory
        self._sums.clear()
        if torch.cuda.is_available() and self.config.state_device == "cpu":
            torch.cuda.current_stream().synchronize()  # until the copies are complete

    def clip_gradients(self) -> float:
        """Scale the gradients down to `max_grad_norm`; returns their Euclidean norm before that."""
        self.hand_over_gradients()
        return float(torch.nn.utils.clip_grad_norm_(self._masters.values(), self.config.max_grad_norm))

    def drop_gradients(self) -> None:
        """Forget the gradients that were handed over."""
        self._adamw.zero_grad(set_to_none=True)

    def step(self) -> None:
        self.hand_over_gradients()
        self._adamw.step()
        self.drop_gradients()
        self._round_to_model()
        self.steps += 1

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must keep: low-precision models' master weights, and the moments if carried."""
        kept = {f"master.{name}": self._masters[name].detach() for name in self._low_precision()}
        if self.config.carry_state:
            for prefix, adamw in self._carried():
                for name, master in self._masters.items():
                    # A weight that never had a gradient has no moments; each weight has its own count of
                    # steps.
                    state = adamw.state.get(master, {})
                    kept.update({f"{prefix}{part}.{name}": value for part, value in state.items()})
        return kept

    def held(self) -> Iterator[torch.Tensor]:
        """All tensors that it holds between steps, and the weights that it changes."""
        yield from self._weights.values()
        yield from self._masters.values()
        for _, adamw in self._carried():
            for state in adamw.state.values():
                yield from state.values()

    def restore(self, tensors: dict[str, torch.Tensor], steps: int) -> None:
        """Continue from `tensors()` of another optimizer over a model with the same weights.

        Raises `InputError` when they belong to other weights.
        """
        moments = [f"{prefix}{part}" for prefix in ("", *map(_prefix, _USES)) for part in _STATE]
        known = {f"{part}.{name}" for part in ("master", *moments) for name in self._masters}
        if unknown := sorted(set(tensors) - known):
            raise InputError(f"the optimizer state holds {unknown[0]}, which is no weight of the policy")
        for name in self._low_precision():
            master = _take(tensors, f"master.{name}", self._masters[name].shape)
            weight = self._weights[name]
            if not torch.equal(master.to(weight), weight):
                raise InputError(
                    f"the optimizer state holds other weights than the checkpoint for {name}: the files do "
                    "not belong together"
                )
            self._masters[name].data.copy_(master)
        if not self.config.carry_state:
            return
        self.steps = steps
        for prefix, adamw in self._carried():
            for name, master in self._masters.items():
                if f"{prefix}step.{name}" in tensors:
                    shapes = {"step": torch.Size(), "exp_avg": master.shape, "exp_avg_sq": master.shape}
                    adamw.state[master] = {
                        part: _take(tensors, f"{prefix}{part}.{name}", shape).to(master.device, copy=True)
                        for part, shape in shapes.items()
                    }

    def _new_adamw(self) -> torch.optim.AdamW:
        config = self.config
        decayed = [master for master in self._masters.values() if master.ndim >= 2]
        others = [master for master in self._masters.values() if master.ndim < 2]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def _carried(self) -> Iterable[tuple[str, torch.optim.AdamW]]:
        """Each AdamW once, with the prefix of its tensors' names."""
        if self.config.moments == "shared":
            return [("", self._adamw)]
        return [(_prefix(use), adamw) for use, adamw in self._by_use.items()]

    def _master(self, weight: torch.nn.Parameter) -> torch.nn.Parameter:
        device = torch.device("cpu") if self.config.state_device == "cpu" else weight.device
        if weight.dtype == torch.float32 and weight.device == device:
            return weight
        return torch.nn.Parameter(weight.detach().to(device, torch.float32))

    def _low_precision(self) -> Iterable[str]:
        """Names of weights that are less precise than their fp32 copy."""
        return [name for name, weight in self._weights.items() if weight.dtype != torch.float32]

    @torch.no_grad()
    def _round_to_model(self) -> None:
        for name, master in self._masters.items():
            weight = self._weights[name]
            if master is weight:
                continue
            if weight.device == master.device:
                weight.copy_(master)
            else:
                # Rounded first, which is half the bytes.
                rounded = master.to(weight.dtype)
                weight.copy_(
                    rounded.pin_memory() if torch.cuda.is_available() else rounded, non_blocking=True
                )


def files_of_state(optimizer: PolicyOptimizer) -> dict[str, StateFile]:
    """The state as files, by their names; most states have one."""
    tensors = optimizer.tensors()
    dealt = state_files(
        {name: tensor.nbytes for name, tensor in tensors.items()}, checkpoint_files.FILE_BYTES
    )
    of_each = {file: {name: tensors[name] for name in names} for file, names in dealt.items()}
    return {file: StateFile(file_size(mine), file_parts(mine)) for file, mine in of_each.items()}


def save_optimizer(optimizer: PolicyOptimizer, folder: Path) -> None:
    """Write the state, in one file or several, and `optimizer.json` into a folder; equal states give equal
    bytes."""
    for name, state in files_of_state(optimizer).items():
        with (folder / name).open("wb") as file:
            for part in state.parts:
                file.write(part)
    write_progress(optimizer, folder)


def state_files(sizes: Mapping[str, int], most: int) -> dict[str, list[str]]:
    """The files of an optimizer's state, and the names of their tensors; see `deal_to_files`."""
    in_order = {name: sizes[name] for name in sorted(sizes)}
    return checkpoint_files.deal_to_files(in_order, Path(OPTIMIZER_STATE).stem, most)


def write_progress(optimizer: PolicyOptimizer, folder: Path) -> None:
    """Write `optimizer.json`, which holds the number of steps taken."""
    steps = optimizer.steps if optimizer.config.carry_state else 0
    (folder / OPTIMIZER_PROGRESS).write_text(json.dumps({"steps": steps}) + "\n")


def load_optimizer(model: torch.nn.Module, config: OptimizerConfig, folder: Path) -> PolicyOptimizer:
    """The optimizer of a checkpoint folder. The first checkpoint of a run has no state: it gets a fresh one.

    Learning rate, betas and the rest come from `config`, so that they may change between stages.
    Raises `InputError` when the state is damaged or belongs to other weights.
    """
    optimizer = PolicyOptimizer(model, config)
    restore_optimizer(optimizer, folder, lambda file, name: file.get_tensor(name))
    return optimizer


def restore_optimizer(
    optimizer: PolicyOptimizer, folder: Path, read: Callable[[Any, str], torch.Tensor]
) -> None:
    """Restore the state in a checkpoint folder, where there is one; raises the errors of `load_optimizer`.
    `read`: gives a tensor by its name, from a file as `safetensors.safe_open` opens it."""
    if not (folder / OPTIMIZER_PROGRESS).exists():
        return
    try:
        steps = int(json.loads((folder / OPTIMIZER_PROGRESS).read_text())["steps"])
        # Read into host memory first: a GPU would hold all of it twice until it is copied to its place.
        tensors: dict[str, torch.Tensor] = {}
        for path in _state_paths(folder):
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors |= {name: read(file, name) for name in file.keys()}  # noqa: SIM118
    except (json.JSONDecodeError, KeyError, FileNotFoundError, SafetensorError) as error:
        raise InputError(f"the optimizer state in {folder} cannot be read: {error}") from error
    optimizer.restore(tensors, steps)


def _state_paths(folder: Path) -> list[Path]:
    """The files of a state, all of them. Raises FileNotFoundError."""
    found = sorted(folder.glob(OPTIMIZER_STATE_FILES))
    several = found[0].stem.rpartition("-of-")[2] if found else ""
    if not found or (found[0].name != OPTIMIZER_STATE and len(found) != int(several)):
        raise FileNotFoundError(f"it has {len(found)} of the files {OPTIMIZER_STATE_FILES}")
    return found


def _add(total: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add a gradient to an fp32 sum. On a CPU torch makes an fp32 copy of what it adds: that of a few rows at
    a time stays in the cache."""
    total, gradient = torch.atleast_1d(total, gradient)
    rows = len(total)
    if total.device.type == "cpu" and total.numel():
        rows = max(1, _BLOCK_ELEMENTS * rows // total.numel())
    for part, added in zip(total.split(rows), gradient.split(rows), strict=True):
        part += added


def _prefix(use: TrainingUse) -> str:
    return f"{use}."


def _take(tensors: dict[str, torch.Tensor], name: str, shape: torch.Size) -> torch.Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != shape:
        found = "nothing" if tensor is None else f"shape {tuple(tensor.shape)}"
        raise InputError(
            f"the optimizer state has {found} under {name}, the policy needs shape {tuple(shape)}: "
            "they do not belong together"
        )
    return tensor

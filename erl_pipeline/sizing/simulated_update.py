"""The update of a configuration at its real size, computed by the trainers' own code on fake tensors.

`python -m erl_pipeline.sizing.simulated_update` reads a `SimulatedWork` as JSON from its standard input and
writes a `RankReport` as JSON. It is a process of its own, since it registers a device with torch and joins a
process group. The device stands for a GPU in any build of torch; the process group is torch's backend `fake`,
whose collective operations do nothing, so that one process shows what a rank of many does.
"""

import erl_pipeline.policies.lean_imports  # noqa: F401

# isort: split
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from erl_pipeline.config.optimizer import TrainingUse
from erl_pipeline.policies.adapters import add_fresh_adapter, has_adapter
from erl_pipeline.policies.model_size import config_file
from erl_pipeline.policies.pretrained import compute_head_in_float32
from erl_pipeline.sizing.recorder import (
    GRADIENTS,
    MAPPED,
    MASTERS,
    MOMENTS,
    REFERENCE,
    WEIGHTS,
    Costs,
    Recorder,
)
from erl_pipeline.sizing.simulated_work import (
    GPU,
    REPORT,
    WORK,
    RankReport,
    SimulatedWork,
    UpdateReport,
    simulated_sequences,
)
from erl_pipeline.trainers.fsdp2.learner import ShardedOptimizer
from erl_pipeline.trainers.fsdp2.sharding import ProcessRanks, own_rows, shard
from erl_pipeline.trainers.interface import Reinforcement, SupervisedTraining
from erl_pipeline.trainers.local.forward import PolicyForward
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer
from erl_pipeline.trainers.local.optimizer_steps import Learner
from erl_pipeline.trainers.local.packing import Microbatch
from erl_pipeline.trainers.local.reinforcement import reinforce
from erl_pipeline.trainers.local.supervised import fine_tune_supervised


def simulate_here(work: SimulatedWork) -> RankReport:
    """As `simulate`, in this process; once for each process."""
    started = time.perf_counter()
    torch.set_num_threads(1)
    if work.device == GPU:
        _register_gpu()
    config = AutoConfig.from_pretrained(config_file(work.model).parent, trust_remote_code=False)
    recorder = Recorder(config.get_text_config().vocab_size, work.processes or 1)
    ranks = None
    if work.processes is not None:
        ranks = _FakeRanks(work.processes, work.rank, torch.device(work.device), recorder)
    skeletons = {part: _skeleton(work, config, part) for part in (WEIGHTS, REFERENCE)}
    with FakeTensorMode(allow_non_fake_inputs=True), recorder:
        updates = _Updates(work, skeletons, recorder, ranks).run()
    return RankReport(work.rank, recorder.peaks(), updates, time.perf_counter() - started)


def _skeleton(work: SimulatedWork, config: PretrainedConfig, part: str) -> PreTrainedModel:
    """The policy or its reference on the device `meta`. Only the policy has an adapter."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, work.dtype)).eval()
        if work.lora is not None and part == WEIGHTS:
            add_fresh_adapter(model, work.lora, seed=0, base="")
    return model


class _FakeRanks(ProcessRanks):
    """The ranks as one of them sees them; all others say the same as this one."""

    def __init__(self, processes: int, rank: int, device: torch.device, recorder: Recorder) -> None:
        dist.init_process_group(f"{device.type}:fake", store=FakeStore(), rank=rank, world_size=processes)
        super().__init__(init_device_mesh(device.type, (processes,)), device)
        self._recorder = recorder

    def exchange(self, text: str) -> list[str]:
        size = len(text.encode())
        self._recorder.add_collective("allgather", self.count * size)
        self._recorder.costs.to_device_bytes += size
        self._recorder.costs.to_host_bytes += self.count * size
        self._recorder.wait(torch.empty(0, device=self.device))
        return [text] * self.count


class _Updates:
    """The updates of a run, on one rank; they share a policy and its optimizer."""

    def __init__(
        self,
        work: SimulatedWork,
        skeletons: dict[str, PreTrainedModel],
        recorder: Recorder,
        ranks: _FakeRanks | None,
    ) -> None:
        self._work, self._skeletons, self._recorder, self._sharded = work, skeletons, recorder, ranks
        self._device = torch.device(work.device)
        self._steps = 0
        self._passes = _Passes(recorder)

    def run(self) -> dict[str, UpdateReport]:
        work = self._work
        learner = self._learner()
        batch = simulated_sequences(work)

        def load_reference() -> PreTrainedModel:
            return learner.model if has_adapter(learner.model) else self._model(REFERENCE)

        load = load_reference if work.objective.needs_reference else None
        found = {}
        with self._passes.each_shape_once():
            self._begin("update")
            reinforce(learner, Reinforcement(batch, work.objective, work.update, 0), load, self._on_step)
            found["update"] = self._report()
            if work.fine_tune is not None:
                self._begin("fine-tune")
                fine_tune_supervised(learner, SupervisedTraining(batch, work.fine_tune, 0), self._on_step)
                found["fine-tune"] = self._report()
        self._begin("commit")
        self._gather(learner)
        found["commit"] = self._report()
        return found

    def _learner(self) -> Learner:
        work = self._work
        model = self._model(WEIGHTS)
        if self._sharded is None:
            learner = Learner(model, PolicyOptimizer(model, work.optimizer), passes=work.passes)
        else:
            optimizer = ShardedOptimizer(model, work.optimizer, self._sharded)
            learner = Learner(model, optimizer, self._sharded, work.passes)
        # As after another update: the moments are there from the beginning.
        learner.optimizer.restore(self._state(learner), steps=1)
        for name, tensor in learner.optimizer.tensors().items():
            self._recorder.name([tensor], MASTERS if name.startswith("master.") else MOMENTS)
        return learner

    def _model(self, part: str) -> PreTrainedModel:
        """A model as `load_policy` gives it, and sharded where ranks share it."""
        # Ranks map the files of the whole model, and move it to their device block by block.
        self._recorder.held_on = None if self._sharded is None else MAPPED
        model = self._skeletons.pop(part).to_empty(device=self._device)
        self._recorder.held_on = None
        model.tie_weights()
        if self._work.head_dtype is not None:
            compute_head_in_float32(model)
        weights = list(model.parameters())
        if self._device.type == GPU:
            self._recorder.costs.to_device_bytes += sum(each.numel() * each.itemsize for each in weights)
        if self._sharded is not None:
            shard(model, self._sharded)
            weights = [own_rows(weight) for weight in model.parameters()]
        for weight in model.parameters():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(
                    lambda each: self._recorder.name([each.grad], GRADIENTS)
                )
        self._recorder.name(weights, part)
        return model

    def _state(self, learner: Learner) -> dict[str, torch.Tensor]:
        """The state of an optimizer as its file would give it, in host memory."""
        optimizer = self._work.optimizer
        state = {
            name: torch.empty_like(each, device="cpu") for name, each in learner.optimizer.tensors().items()
        }
        uses = [""] if optimizer.moments == "shared" else [f"{use}." for use in get_args(TrainingUse)]
        for name, weight in learner.model.named_parameters():
            if weight.requires_grad:
                shape = weight.shape if self._sharded is None else own_rows(weight).shape
                for use in uses:
                    state[f"{use}step.{name}"] = torch.empty((), device="cpu")
                    state[f"{use}exp_avg.{name}"] = torch.empty(shape, device="cpu")
                    state[f"{use}exp_avg_sq.{name}"] = torch.empty(shape, device="cpu")
        return state

    def _gather(self, learner: Learner) -> None:
        """What `save` puts together in host memory: all weights, then the tensors of the state; with several
        ranks as if each wrote every so many-th tensor. A rank has one tensor of the weights at a time, and
        its part of the state until all of it is written.

        `save` itself writes values into files.
        """
        if self._sharded is None:
            _kept = [weight.detach().cpu() for weight in learner.model.parameters()]
            _state = [tensor.cpu() for tensor in learner.optimizer.tensors().values()]
            return
        count = self._sharded.count
        weights = list(learner.model.parameters())
        for number, weight in enumerate(weights):
            self._gathered(own_rows(weight), weight.shape, number % count)
        state = [tensor for tensor in learner.optimizer.tensors().values() if tensor.ndim]
        _written = [
            self._gathered(rows, torch.Size([len(rows) * count, *rows.shape[1:]]), number % count)
            for number, rows in enumerate(state, start=len(weights))
        ]

    def _gathered(self, rows: torch.Tensor, shape: torch.Size, to: int) -> torch.Tensor | None:
        assert self._sharded is not None
        whole = self._sharded.gather(rows, shape, to)
        return None if whole is None else whole.cpu()

    def _begin(self, phase: str) -> None:
        self._recorder.begin(phase)
        self._steps = 0
        self._passes.count = self._passes.waits = self._passes.in_step = 0

    def _on_step(self, step: int, _loss: float) -> None:
        self._steps = step
        self._passes.in_step = 0

    def _report(self) -> UpdateReport:
        passes = self._passes
        waits = passes.waits / passes.count if passes.count else 0.0
        return UpdateReport(self._recorder.costs, self._steps, passes.count, waits)


class _Passes:
    """The passes of a rank. `waits`: of the host, within forward and backward passes."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._known: dict[Any, Costs] = {}
        self.count = self.waits = self.in_step = 0

    @contextmanager
    def each_shape_once(self) -> Iterator[None]:
        """Compute only the first pass of each step, and of the others one of each shape: the rest would take
        the same memory and cost the same, and is only counted."""
        backward, hidden = PolicyForward.backward, PolicyForward.hidden
        PolicyForward.backward = self._backward(backward)  # type: ignore[method-assign]
        PolicyForward.hidden = self._hidden(hidden)  # type: ignore[method-assign]
        try:
            yield
        finally:
            PolicyForward.backward = backward  # type: ignore[method-assign]
            PolicyForward.hidden = hidden  # type: ignore[method-assign]

    def _backward(self, real: Callable[..., None]) -> Callable[..., None]:
        def backward(forward: PolicyForward, microbatch: Microbatch, *args: Any) -> None:
            how = id(forward.model), forward.ranks.sums_now, _shapes(microbatch)
            key = ("backward", *how) if self.in_step else None
            if key in self._known:
                self._recorder.costs += self._known[key]
                cost = self._known[key]
            else:
                before = self._recorder.costs.copy()
                real(forward, microbatch, *args)
                cost = self._recorder.costs - before
                if key is not None:
                    self._known[key] = cost
            self.count += 1
            self.in_step += 1
            self.waits += cost.waits.total()

        return backward

    def _hidden(self, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def hidden(forward: PolicyForward, microbatch: Microbatch) -> torch.Tensor:
            key = ("hidden", id(forward.model), _shapes(microbatch))
            if torch.is_grad_enabled() or key not in self._known:
                before = self._recorder.costs.copy()
                states = real(forward, microbatch)
                self._known[key] = self._recorder.costs - before
                return states
            self._recorder.costs += self._known[key]
            forward.ranks.gather_weights(forward.model)
            width = forward.model.config.get_text_config().hidden_size
            return microbatch.targets.new_empty((len(microbatch.targets), width), dtype=forward.model.dtype)

        return hidden


def _shapes(value: Any) -> Any:
    """The shapes of all tensors in a value, as something that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.shape
    if is_dataclass(value):
        return tuple(_shapes(each) for each in vars(value).values())
    return tuple(map(_shapes, value)) if isinstance(value, tuple) else value


def _register_gpu() -> None:
    """Make `gpu` a device of torch, with the streams of the CPU, which do nothing."""
    module = SimpleNamespace(
        Stream=torch.cpu.Stream,
        Event=torch.cpu.Event,
        stream=torch.cpu.stream,
        current_stream=torch.cpu.current_stream,
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda _device: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16],
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda _seed: None,
        # peft saves and restores the state of random numbers.
        get_rng_state=lambda _device=None: torch.empty(0),
        set_rng_state=lambda _state, _device=None: None,
    )
    _setup_privateuseone_for_python_backend(GPU, backend_module=module)


if __name__ == "__main__":
    print(REPORT.dump_json(simulate_here(WORK.validate_json(sys.stdin.read()))).decode())

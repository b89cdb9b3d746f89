from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from erl_pipeline.config.optimizer import OptimizerConfig, TrainingUse
from erl_pipeline.trainers.local.optimizer import PolicyOptimizer, load_optimizer, save_optimizer
from storage.errors import InputError

MakeModel = Callable[[], PreTrainedModel]


def train(model: PreTrainedModel, optimizer: PolicyOptimizer, steps: range) -> None:
    """Steps on a loss that changes from step to step."""
    for step in steps:
        token_ids = torch.arange(step, step + 12)[None] % 31
        model(token_ids, labels=token_ids).loss.backward()
        optimizer.collect_gradients()
        optimizer.clip_gradients()
        optimizer.step()


def bits(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_optimizer_goes_on_bit_by_bit(
    make_model: MakeModel, tmp_path: Path, dtype: torch.dtype
) -> None:
    config = OptimizerConfig(learning_rate=1e-3, weight_decay=0.1)
    undisturbed = make_model().to(dtype)
    train(undisturbed, PolicyOptimizer(undisturbed, config), range(5))

    first = make_model().to(dtype)
    optimizer = PolicyOptimizer(first, config)
    train(first, optimizer, range(2))
    save_optimizer(optimizer, tmp_path)
    second = make_model().to(dtype)
    second.load_state_dict(first.state_dict())
    resumed = load_optimizer(second, config, tmp_path)
    assert resumed.steps == 2
    train(second, resumed, range(2, 5))

    assert all(torch.equal(bits(undisturbed)[name], weight) for name, weight in bits(second).items())


def test_equal_states_are_equal_files(make_model: MakeModel, tmp_path: Path) -> None:
    for name in ("a", "b"):
        model = make_model()
        optimizer = PolicyOptimizer(model, OptimizerConfig())
        train(model, optimizer, range(2))
        (tmp_path / name).mkdir()
        save_optimizer(optimizer, tmp_path / name)
    for file in ("optimizer.safetensors", "optimizer.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("shape", [(), (5,), (7, 3), (2, 0)])
def test_gradients_are_added_in_blocks(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("erl_pipeline.trainers.local.optimizer._BLOCK_ELEMENTS", 6)  # two rows of three
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16))
    optimizer = PolicyOptimizer(model, OptimizerConfig())
    numbers = torch.arange(math.prod(shape)).reshape(shape)
    for number in (1.0, 256.0, 1.0):  # in bf16, 256 + 1 is 256
        model.weight.grad = (numbers + number).bfloat16()
        optimizer.collect_gradients()
    optimizer.hand_over_gradients()
    assert torch.equal(optimizer.tensors()["master.weight"], torch.zeros(shape))
    (master,) = optimizer._masters.values()
    rounded = (numbers + 256.0).bfloat16().float()
    assert master.grad is not None
    assert torch.equal(master.grad, rounded + 2 * (numbers + 1.0))


def test_the_first_step_of_adamw_by_hand() -> None:
    # The first step is learning_rate * gradient / (|gradient| + eps) after decay; vectors are not decayed.
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(2.0)
        model.bias.fill_(3.0)
    optimizer = PolicyOptimizer(
        model, OptimizerConfig(learning_rate=0.1, weight_decay=0.5, max_grad_norm=100.0)
    )
    model.weight.grad, model.bias.grad = torch.full((1, 1), 3.0), torch.full((1,), -4.0)
    assert optimizer.clip_gradients() == pytest.approx(5.0)
    optimizer.step()
    assert model.weight.item() == pytest.approx(2.0 - 0.1 * 0.5 * 2.0 - 0.1)
    assert model.bias.item() == pytest.approx(3.0 + 0.1)
    assert model.weight.grad is None


def turned(optimizer: PolicyOptimizer, weight: torch.Tensor) -> list[float]:
    """A weight that begins at 0, after a reinforcement step against gradient 1 and supervised ones against -1
    and -1."""
    weight.data.zero_()
    found = []
    steps: list[tuple[TrainingUse, float]] = [
        ("reinforcement", 1.0),
        ("supervised", -1.0),
        ("supervised", -1.0),
    ]
    for use, gradient in steps:
        optimizer.turn_to(use)
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        found.append(weight.item())
    return found


def test_moments_by_use_forget_what_the_other_use_did() -> None:
    """By hand, with betas 0.9 and 0.95: after gradients 1 and -1 the shared moments are -0.01 and 0.0975,
    without bias -0.01 / 0.19 and 1, so that the second step has 1/19 of the length of a first one."""
    model = torch.nn.Linear(1, 1, bias=False)
    shared = PolicyOptimizer(model, OptimizerConfig(learning_rate=0.1))
    first, second, third = turned(shared, model.weight)
    assert (first, second) == pytest.approx((-0.1, -0.1 + 0.1 / 19))
    # -0.109 / (1 - 0.729), and again 1.
    assert third == pytest.approx(second + 0.1 * 0.109 / 0.271)

    by_use = PolicyOptimizer(model, OptimizerConfig(learning_rate=0.1, moments="by_use"))
    assert turned(by_use, model.weight) == pytest.approx([-0.1, 0.0, 0.1])
    assert by_use.steps == 3


@pytest.mark.parametrize("moments", ["shared", "by_use"])
def test_supervised_steps_may_have_a_length_of_their_own(moments: str) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.zero_()
    optimizer = PolicyOptimizer(model, OptimizerConfig(learning_rate=0.1, moments=moments))
    lengths: list[tuple[TrainingUse, float | None, float]] = [
        ("supervised", 0.01, 0.01),
        ("reinforcement", None, 0.11),
        ("supervised", None, 0.21),
    ]
    for use, learning_rate, expected in lengths:
        optimizer.turn_to(use, learning_rate)
        model.weight.grad = torch.full_like(model.weight, -1.0)
        optimizer.step()
        assert model.weight.item() == pytest.approx(expected)


def test_moments_by_use_are_kept_and_taken_up_by_use(tmp_path: Path) -> None:
    config = OptimizerConfig(learning_rate=0.1, moments="by_use")
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = PolicyOptimizer(model, config)
    turned(optimizer, model.weight)
    tensors = optimizer.tensors()
    assert {name: round(tensor.item(), 6) for name, tensor in tensors.items()} == {
        "reinforcement.step.weight": 1.0,
        "reinforcement.exp_avg.weight": 0.1,
        "reinforcement.exp_avg_sq.weight": 0.05,
        "supervised.step.weight": 2.0,
        "supervised.exp_avg.weight": -0.19,
        "supervised.exp_avg_sq.weight": 0.0975,
    }
    save_optimizer(optimizer, tmp_path)
    again = load_optimizer(model, config, tmp_path)
    assert again.steps == 3
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.tensors().items())


def test_where_a_branch_divides_the_moments_they_begin_anew(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = PolicyOptimizer(model, OptimizerConfig())
    turned(optimizer, model.weight)
    save_optimizer(optimizer, tmp_path)
    assert load_optimizer(model, OptimizerConfig(moments="by_use"), tmp_path).tensors() == {}


def test_small_steps_add_up_under_bf16() -> None:
    model = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = PolicyOptimizer(model, OptimizerConfig(learning_rate=1e-3))
    for _ in range(8):
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.collect_gradients()
        optimizer.step()
    # One step of 0.001 is less than half the distance between bf16 numbers below 1, which is 0.0039.
    assert model.weight.item() == 0.9921875


def test_low_precision_gradients_are_summed_in_fp32() -> None:
    model = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    optimizer = PolicyOptimizer(model, OptimizerConfig(max_grad_norm=1000.0))
    for gradient in (256.0, 1.0, 1.0):  # in bf16 256 + 1 is 256
        model.weight.grad = torch.full_like(model.weight, gradient)
        optimizer.collect_gradients()
    assert optimizer.clip_gradients() == 258.0


def test_without_carried_state_only_master_weights_are_kept(make_model: MakeModel, tmp_path: Path) -> None:
    config = OptimizerConfig(carry_state=False)
    model = make_model().to(torch.bfloat16)
    optimizer = PolicyOptimizer(model, config)
    train(model, optimizer, range(2))
    assert {name.split(".")[0] for name in optimizer.tensors()} == {"master"}
    save_optimizer(optimizer, tmp_path)
    assert load_optimizer(model, config, tmp_path).steps == 0


def test_a_checkpoint_without_state_starts_afresh(make_model: MakeModel, tmp_path: Path) -> None:
    assert load_optimizer(make_model(), OptimizerConfig(), tmp_path).steps == 0


def test_state_that_belongs_to_other_weights_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model().to(torch.bfloat16)
    optimizer = PolicyOptimizer(model, OptimizerConfig())
    train(model, optimizer, range(1))
    save_optimizer(optimizer, tmp_path)
    with pytest.raises(InputError, match="do not belong together"):
        load_optimizer(make_model().to(torch.bfloat16), OptimizerConfig(), tmp_path)
    with pytest.raises(InputError, match="which is no weight of the policy"):
        load_optimizer(torch.nn.Linear(2, 2).to(torch.bfloat16), OptimizerConfig(), tmp_path)


def test_state_of_another_shape_or_precision_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    save_optimizer(PolicyOptimizer(make_model(), OptimizerConfig()), tmp_path)
    with pytest.raises(InputError, match=r"has nothing under master\."):
        load_optimizer(make_model().to(torch.bfloat16), OptimizerConfig(), tmp_path)
    wide, narrow = torch.nn.Linear(2, 3), torch.nn.Linear(2, 2)
    optimizer = PolicyOptimizer(wide, OptimizerConfig())
    wide(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    save_optimizer(optimizer, tmp_path)
    with pytest.raises(InputError, match=r"has shape \(3, 2\) under exp_avg.weight"):
        load_optimizer(narrow, OptimizerConfig(), tmp_path)


def test_a_weight_that_skipped_steps_keeps_its_own_count(tmp_path: Path) -> None:
    def train_layers(layers: torch.nn.ModuleList, optimizer: PolicyOptimizer, used: str) -> None:
        for name in used:
            layers[int(name)](torch.ones(1, 2)).square().sum().backward()
            optimizer.step()

    def fresh() -> torch.nn.ModuleList:
        torch.manual_seed(0)
        return torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])

    undisturbed = fresh()
    train_layers(undisturbed, PolicyOptimizer(undisturbed, OptimizerConfig()), "000101")
    layers = fresh()
    optimizer = PolicyOptimizer(layers, OptimizerConfig())
    train_layers(layers, optimizer, "000")
    save_optimizer(optimizer, tmp_path)
    train_layers(layers, load_optimizer(layers, OptimizerConfig(), tmp_path), "101")
    for weight, expected in zip(layers.parameters(), undisturbed.parameters(), strict=True):
        assert torch.equal(weight, expected)


def test_damaged_state_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model()
    save_optimizer(PolicyOptimizer(model, OptimizerConfig()), tmp_path)
    (tmp_path / "optimizer.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match="cannot be read"):
        load_optimizer(model, OptimizerConfig(), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_state_in_host_memory_changes_no_byte(
    make_model: MakeModel, tmp_path: Path, dtype: torch.dtype
) -> None:
    trained = {}
    for place in ("model", "cpu"):
        config = OptimizerConfig(learning_rate=1e-3, state_device=place)
        trained[place] = make_model().to(dtype)
        optimizer = PolicyOptimizer(trained[place], config)
        train(trained[place], optimizer, range(3))
        (tmp_path / place).mkdir()
        save_optimizer(optimizer, tmp_path / place)
    assert all(
        torch.equal(bits(trained["cpu"])[name], weight) for name, weight in bits(trained["model"]).items()
    )
    for file in ("optimizer.safetensors", "optimizer.json"):
        assert (tmp_path / "cpu" / file).read_bytes() == (tmp_path / "model" / file).read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("place", "device"), [("model", "cuda"), ("cpu", "cpu")])
def test_state_lies_where_it_should_for_weights_on_a_gpu(
    dtype: torch.dtype, place: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fake tensors have a device and no content, and refuse what mixes devices as real ones do. A CPU build of
    # torch lacks one operation of them, the copy onto the GPU, with which a step ends.
    monkeypatch.setattr(PolicyOptimizer, "_round_to_model", lambda self: None)
    with FakeTensorMode():
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.empty(2, 3, device="cuda", dtype=dtype))
        optimizer = PolicyOptimizer(model, OptimizerConfig(state_device=place))
        for _ in range(2):
            model.weight.grad = torch.empty(2, 3, device="cuda", dtype=dtype)
            optimizer.collect_gradients()
        optimizer.hand_over_gradients()
        torch.nn.utils.clip_grad_norm_(optimizer._masters.values(), 1.0)
        gradient = optimizer._masters["weight"].grad
        assert gradient is not None
        assert gradient.device.type == device
        optimizer.step()
        kept = optimizer.tensors()
    assert model.weight.device.type == "cuda"
    assert set(kept) == {
        *(f"{part}.weight" for part in ("step", "exp_avg", "exp_avg_sq")),
        *(("master.weight",) if dtype == torch.bfloat16 else ()),
    }
    assert {tensor.device.type for tensor in kept.values()} == {device}


class _Moves(TorchDispatchMode):
    """Counts copies between devices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default and args[0].device != args[1].device:
            self.found.append((args[1].device.type, args[0].device.type, args[1].dtype))
        elif func is torch.ops.aten._to_copy.default and args[0].device != result.device:
            self.found.append((args[0].device.type, result.device.type, args[0].dtype))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_move_to_host_memory_once_a_step(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two weights, over three passes; the sums move in fp32."""
    monkeypatch.setattr(PolicyOptimizer, "_round_to_model", lambda self: None)  # see above
    with FakeTensorMode():
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.empty(2, 3, device="cuda", dtype=dtype))
        model.bias = torch.nn.Parameter(torch.empty(3, device="cuda", dtype=dtype))
        optimizer = PolicyOptimizer(model, OptimizerConfig(state_device="cpu"))
        with _Moves() as moves:
            for _ in range(3):
                for weight in model.parameters():
                    weight.grad = torch.empty_like(weight)
                optimizer.collect_gradients()
            assert moves.found == []
            optimizer.step()
    assert moves.found == [("cuda", "cpu", torch.float32)] * 2

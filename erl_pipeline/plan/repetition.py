"""Repeating trainings for the state of an optimizer that no file has: which checkpoints are committed without
it, which stages bring it back, and the proof that a repeated stage gave the committed bytes.

The state takes 12 of 14 bytes per weight (bf16), and is needed only to train on. So it may be committed each
K-th iteration, as long as the updates since then can be repeated bit for bit from committed rollouts.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from erl_pipeline.plan.plan import Plan, PlannedStage
from erl_pipeline.policies.checkpoints import CHECKPOINT, lacks_state
from storage.artifacts.artifact import Artifact
from storage.artifacts.manifest import FileEntry, Manifest
from storage.errors import NotRepeated


def without_state(plan: Plan, every: int) -> frozenset[str]:
    """Ids of the checkpoints that are committed without the state of the optimizer: all but those with which
    an iteration ends that `every` divides, or that is the plan's last."""
    if every == 1:
        return frozenset()
    trained = [node for node in plan.nodes if node.stage.output == "checkpoint" and node.iteration]
    within = {(node.iteration, node.recipe.inputs[CHECKPOINT]) for node in trained}
    return frozenset(
        node.artifact_id
        for node in trained
        if (node.iteration, node.artifact_id) in within
        or (node.place.iteration % every and node.iteration != plan.iterations)
    )


def made_since_state(
    checkpoint_id: str, maker: Callable[[str], PlannedStage], find: Callable[[str], Manifest | None]
) -> tuple[PlannedStage, ...]:
    """The stages that made a checkpoint since the last one that has the state, in their order; empty if it
    has it."""
    stages: list[PlannedStage] = []
    at = checkpoint_id
    while (manifest := find(at)) is not None and lacks_state(manifest):
        stages.append(maker(at))
        at = stages[-1].recipe.inputs[CHECKPOINT]
    return tuple(reversed(stages))


def require_committed(title: str, committed: Artifact, files: Sequence[FileEntry], folder: Path) -> None:
    """Raise NotRepeated unless a repeated stage wrote the files of the committed artifact. It names the first
    tensor that differs.

    Args:
        files: what it wrote into `folder`, with digests.
    """
    before = {entry.path: entry for entry in committed.files}
    after = {entry.path: entry for entry in files}
    for name in sorted(before | after, key=lambda name: (not name.endswith(".safetensors"), name)):
        old, new = before.get(name), after.get(name)
        if old is not None and new is not None and old.sha256 == new.sha256:
            continue
        if old is None or new is None:
            found = f"{name} is only in the {'repeated' if old is None else 'committed'} artifact"
        else:
            found = f"{name} has SHA-256 {new.sha256[:12]}, committed is {old.sha256[:12]}"
            if name.endswith(".safetensors"):
                there = committed.pruned.of(name) is None
                found += f"; {_parting(committed.path(name), folder / name)}" if there else ""
        made = committed.manifest
        raise NotRepeated(
            f"{title} was repeated, since no file has the optimizer's state, and did not give its committed "
            f"bytes ({made.artifact_id}): {found}. So the run cannot go on from here with the same weights. "
            "Repeat it on the same kind of processor, with the same packages and resources.threads "
            f"(committed with {made.environment.get('threads')} on {made.environment['processor']}); or "
            "branch from an iteration whose checkpoint has optimizer.safetensors"
        )


def _parting(committed: Path, repeated: Path) -> str:
    """Where the tensors of two files part first, in the order of their names."""
    import torch
    from safetensors import safe_open

    with safe_open(committed, framework="pt") as old, safe_open(repeated, framework="pt") as new:
        names = sorted({*old.keys(), *new.keys()})
        for name in names:
            if name not in old.keys() or name not in new.keys():  # noqa: SIM118
                return f"only one of the two has tensor {name}"
            one, other = old.get_tensor(name), new.get_tensor(name)
            if one.shape != other.shape or one.dtype != other.dtype:
                return f"tensor {name} has another shape or type"
            if not torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)):
                count = int((one != other).sum())
                gap = float((one.float() - other.float()).abs().max())
                return (
                    f"they part at tensor {name}: {count:,} of {one.numel():,} numbers differ, by up to "
                    f"{gap:.3g}"
                )
    return "all tensors are equal; the files' headers differ"

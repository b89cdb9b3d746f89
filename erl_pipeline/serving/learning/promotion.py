"""Letting an alias mean another checkpoint, and going back."""

from __future__ import annotations

from datetime import UTC, datetime

from erl_pipeline.policies.checkpoints import MODEL
from erl_pipeline.serving.learning.forgotten import learned_from_forgotten
from erl_pipeline.serving.learning.gate import compare_feedback
from erl_pipeline.serving.settings import GateSettings
from storage.artifacts.manifest import Manifest
from storage.artifacts.store import ArtifactStore
from storage.errors import InputError
from storage.runs.run import RunStore
from storage.serving.aliases import AliasChange, Verdict, change_alias, current_aliases, verdicts

PRODUCTION, CANDIDATE = "production", "candidate"


def require_alias(store_uri: str, run: str, alias: str) -> AliasChange:
    """What an alias means now. Raises InputError, which says what to do, where it means nothing."""
    found = current_aliases(store_uri, run).get(alias)
    if found is None:
        raise InputError(
            f"the alias {alias} of run {run} means nothing yet; begin with: erl-pipeline promote {run} "
            f"--alias {alias} --checkpoint latest --without-gate --why 'the first one'"
        )
    return found


def promote(
    store_uri: str,
    run: str,
    alias: str,
    checkpoint_id: str,
    settings: GateSettings,
    who: str,
    *,
    why: str = "",
    without_gate: bool = False,
) -> AliasChange:
    """Let an alias mean a checkpoint. The change is on disk when this returns.

    Raises InputError where the id is no checkpoint's, where its gate did not pass, where its night had
    learned from a user who was forgotten since, where `production` means another checkpoint than the gate has
    compared with, or where feedback speaks against it; RunBusy when another process works on the run.
    """
    manifest = ArtifactStore(store_uri).find(checkpoint_id)
    if manifest is None or manifest.kind != "checkpoint":
        raise InputError(f"{checkpoint_id} is no checkpoint of this store")
    _require_weights(store_uri, manifest)
    if without_gate and not why:
        raise InputError("--without-gate needs a reason: --why TEXT")
    with RunStore(store_uri).open(run).lock():
        before = current_aliases(store_uri, run).get(alias)
        previous = None if before is None else before.checkpoint_id
        if without_gate:
            gate: dict[str, float | int | str | bool] = {"without_gate": True}
        else:
            passed = _passed(store_uri, run, alias, checkpoint_id, previous, settings)
            gate, why = passed.numbers, why or passed.reason
        if before is not None and previous == checkpoint_id:
            # Asked for again, such as for a server that could not open it: the way back stays.
            previous = before.previous
        _require_weights(store_uri, manifest)  # The run that has made it may have pruned them meanwhile.
        return _change(store_uri, run, alias, checkpoint_id, previous, manifest.run, who, why, gate)


def roll_back(store_uri: str, run: str, alias: str, who: str, why: str = "") -> AliasChange:
    """Let an alias mean again what it meant before its last change. No gate is asked, and the checkpoint may
    have learned from a user who was forgotten since: what serves may be broken.

    Raises InputError where it meant nothing before, RunBusy when another process works on the run.
    """
    with RunStore(store_uri).open(run).lock():
        now = require_alias(store_uri, run, alias)
        if now.previous is None:
            raise InputError(f"the alias {alias} of run {run} meant nothing before {now.checkpoint_id[:12]}")
        manifest = ArtifactStore(store_uri).find(now.previous)
        if manifest is None:
            raise InputError(f"checkpoint {now.previous} is gone from the store")
        _require_weights(store_uri, manifest)
        reason = why or f"back from {now.checkpoint_id[:12]}"
        return _change(store_uri, run, alias, now.previous, now.checkpoint_id, manifest.run, who, reason, {})


def _require_weights(store_uri: str, manifest: Manifest) -> None:
    """Raise InputError for a checkpoint that nothing could serve."""
    gone = [
        each for each in ArtifactStore(store_uri).pruned(manifest).files if each.path.startswith(f"{MODEL}/")
    ]
    if gone:
        raise InputError(
            f"the weights of checkpoint {manifest.artifact_id[:12]} were pruned on "
            f"{gone[0].pruned_at:%Y-%m-%d} by {gone[0].reason}; promote one that still has them"
        )


def _passed(
    store_uri: str, run: str, alias: str, checkpoint_id: str, previous: str | None, settings: GateSettings
) -> Verdict:
    """The verdict on a checkpoint, with the numbers of feedback by now. Raises InputError if it did not pass,
    if it does not compare with what production means, or if a user was forgotten from whom it had learned."""
    found = [each for each in verdicts(store_uri, run) if each.checkpoint_id == checkpoint_id]
    if not found or not found[-1].passed:
        said = f"did not pass: {found[-1].reason}" if found else "was never asked: no night has made it"
        raise InputError(
            f"the gate of checkpoint {checkpoint_id[:12]} {said}. To promote it all the same: --without-gate "
            "--why TEXT"
        )
    verdict = found[-1]
    if previous == checkpoint_id:
        return verdict
    for learned in learned_from_forgotten(store_uri, checkpoint_id, since=verdict.against):
        raise InputError(
            f"checkpoint {checkpoint_id[:12]} cannot unlearn: {learned}. The next night of `learn` leaves "
            "that batch out. To promote it all the same: --without-gate --why TEXT"
        )
    if previous is None:
        return verdict
    if alias == PRODUCTION and previous != verdict.against:
        raise InputError(
            f"the gate of checkpoint {checkpoint_id[:12]} has compared it with {verdict.against[:12]}, and "
            f"{alias} means {previous[:12]} by now. To promote it all the same: --without-gate --why TEXT"
        )
    feedback = compare_feedback(store_uri, run, checkpoint_id, previous, settings)
    if feedback is None:
        return verdict
    if feedback.low < -settings.held_out_drop:
        raise InputError(
            f"feedback speaks against checkpoint {checkpoint_id[:12]}: {feedback.difference:+.3f}, at least "
            f"{feedback.low:+.3f} by the lower bound. To promote it all the same: --without-gate --why TEXT"
        )
    return verdict.model_copy(update={"numbers": {**verdict.numbers, **feedback.numbers("feedback")}})


def _change(
    store_uri: str,
    run: str,
    alias: str,
    checkpoint_id: str,
    previous: str | None,
    made_by: str,
    who: str,
    reason: str,
    gate: dict[str, float | int | str | bool],
) -> AliasChange:
    change = AliasChange(
        alias=alias,
        checkpoint_id=checkpoint_id,
        previous=previous,
        run=made_by,
        who=who,
        reason=reason,
        gate=gate,
        changed=datetime.now(UTC),
    )
    change_alias(store_uri, run, change)
    return change

"""What an update takes on a rank, measured on tensors without memory, in `erl-pipeline doctor --config`."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from command_line.doctor.hardware import read_gpus
from command_line.doctor.memory_needed import MemoryNeeded, gb
from command_line.output import print_line, print_table
from erl_pipeline.config.run import RunConfig
from erl_pipeline.sizing.formulas import MemoryPart
from erl_pipeline.sizing.recorder import GATHERED, GRADIENTS, MASTERS, MOMENTS, PARTS
from erl_pipeline.sizing.simulated_work import (
    GPU,
    REPORT,
    RankReport,
    SimulatedWork,
    simulate,
    simulated_work,
)
from storage.errors import InputError
from storage.texts import counted

CARDS = {
    "rtx4090": 24e9,
    "a100-40": 40e9,
    "l40s": 48e9,
    "a100": 80e9,
    "h100": 80e9,
    "h200": 141e9,
    "b200": 180e9,
}
"""Memory of cards, in bytes."""
KEPT_FREE = 0.08
"""The share of a card's memory that the driver, NCCL's buffers and gaps between allocations may take."""
LARGE_MODEL = 1e9
"""Weights from which a model is not trained on a processor."""
_WAITS_SHOWN = 6
_ESTIMATED = {
    GRADIENTS: (
        "gradients of a pass",
        "summed gradients",
        "gradients before they are added up",
        "whole gradients of the blocks",
    ),
    MASTERS: ("fp32 weights",),
    MOMENTS: ("moments of AdamW",),
    GATHERED: ("gathered weights",),
}
"""Names in the estimate by arithmetic, where they are others."""


@dataclass(frozen=True)
class Card:
    """The device that trains, or that is thought of; `memory` in bytes."""

    name: str
    memory: float
    device: str = GPU


def card_named(name: str | None, parameters: int) -> Card:
    """A card by its name or its memory in GB, or `cpu`. None: the GPU of this machine; without one the
    processor or, for a model that is too large for it, an h100. Raises InputError for a name that is not
    known."""
    if name is None:
        gpus = read_gpus()
        if gpus:
            return Card(gpus[0].name, gpus[0].memory)
        name = "h100" if parameters >= LARGE_MODEL else "cpu"
    if name == "cpu":
        return Card("this processor", psutil.virtual_memory().total, "cpu")
    if name in CARDS:
        return Card(name, CARDS[name])
    try:
        return Card(f"a card of {float(name):g} GB", float(name) * 1e9)
    except ValueError:
        raise InputError(f"--card {name}: known are cpu, {', '.join(CARDS)}, and a number of GB") from None


@dataclass(frozen=True)
class MeasuredUpdate:
    """What ranks need for the updates of an iteration, and the card that they should fit on."""

    card: Card
    work: SimulatedWork
    reports: Sequence[RankReport]
    estimate: Sequence[MemoryPart]
    """What the trainer's device needs by arithmetic."""
    left_out: Sequence[str]
    """What the configuration adds to its updates and is not measured."""

    def needed(self, report: RankReport) -> int:
        """Bytes that a rank needs on its device; all ranks share a processor."""
        shares = (self.work.processes or 1) if self.work.device == "cpu" else 1
        return shares * report.peaks[self.work.device].bytes

    def fits(self, report: RankReport) -> bool:
        return self.needed(report) <= (1 - KEPT_FREE) * self.card.memory

    def as_json(self) -> dict[str, Any]:
        """The measurement as JSON values."""
        return {
            "card": asdict(self.card),
            "processes": self.work.processes or 1,
            "sequences": self.work.sequences,
            "prompt_tokens": self.work.prompt_tokens,
            "response_tokens": self.work.response_tokens,
            "left_out": list(self.left_out),
            "ranks": [
                {**REPORT.dump_python(report, mode="json"), "fits": self.fits(report)}
                for report in self.reports
            ],
        }

    def print(self) -> None:
        """Print the memory of each rank by part, what each update computes and moves, and whether it fits."""
        work, device = self.work, self.work.device
        print_line(
            f"One iteration's updates, computed by the trainer's own code on tensors without memory: "
            f"{work.sequences:,} sequences of {work.prompt_tokens + work.response_tokens:,} tokens, of which "
            f"{work.prompt_tokens:,} are a prompt that {work.group} share."
        )
        names = [f"rank {report.rank}" for report in self.reports]
        peaks = [report.peaks[device] for report in self.reports]
        estimated = {part.name: part.bytes for part in self.estimate}

        def row(what: str, cells: Iterable[str], arithmetic: int = 0) -> dict[str, str]:
            shown = dict(zip(names, cells, strict=True))
            return {"at the peak, GB": what, **shown, "by arithmetic": gb(arithmetic) if arithmetic else ""}

        rows = []
        for part in PARTS:
            found = [peak.parts.get(part, 0) for peak in peaks]
            arithmetic = sum(estimated.get(name, 0) for name in _ESTIMATED.get(part, (part,)))
            if any(found) or arithmetic:
                rows.append(row(part, map(gb, found), arithmetic))
        rows.append(row("all", [gb(peak.bytes) for peak in peaks], sum(estimated.values())))
        if device == GPU:
            hosts = [report.peaks.get("cpu") for report in self.reports]
            rows.append(row("its host", ["0" if host is None else gb(host.bytes) for host in hosts]))
        print_table(rows, left=("at the peak, GB",))
        for report in self.reports:
            print_table([_cells(report, name) for name in report.updates], left=("rank", "work"))
            _print_waits(report)
        for report in self.reports:
            print_line(_verdict(self, report))
        print_line(
            "Not counted: what a sampler takes on the same card, the program and its libraries, and the "
            "working memory within an operation."
        )
        if self.left_out:
            print_line(f"Not measured, but in the updates of this run: {'; '.join(self.left_out)}.")


def measure_update(
    needed: MemoryNeeded,
    card: str | None,
    ranks: Sequence[int],
    sequences: int | None = None,
    sequence_tokens: int | None = None,
    prompt_tokens: int | None = None,
) -> MeasuredUpdate:
    """Measure what ranks need, one after the other; `needed` is the estimate for the same configuration.

    Raises InputError for a rank or a card that is not known, and where an update cannot run without values.
    """
    chosen = card_named(card, needed.model.parameters)
    if unknown := [rank for rank in ranks if rank >= needed.processes]:
        raise InputError(
            f"--rank {unknown[0]}: the trainer has {counted(needed.processes, 'process')}, from 0"
        )
    work = simulated_work(
        needed.resolved,
        chosen.device,
        sequences=sequences,
        sequence_tokens=sequence_tokens,
        prompt_tokens=prompt_tokens,
    )
    reports = [simulate(replace(work, rank=rank)) for rank in ranks]
    estimate = [part for part in needed.parts if part.place == "trainer"]
    return MeasuredUpdate(chosen, work, reports, estimate, _left_out(needed.resolved))


def _left_out(config: RunConfig) -> list[str]:
    found = []
    if config.replay is not None:
        found.append("the rows of replay (more sequences; --sequences adds them)")
    if config.self_distillation is not None:
        found.append("self-distillation (its teacher's pass over the sequences, and the scores in the loss)")
    return found


def _cells(report: RankReport, name: str) -> dict[str, str]:
    update = report.updates[name]
    costs = update.costs
    return {
        "rank": str(report.rank),
        "work": name,
        "steps": str(update.optimizer_steps),
        "microbatches": str(update.microbatches),
        "PFLOP": f"{costs.flops / 1e15:,.3f}",
        "sent to ranks, GB": gb(costs.interconnect_bytes),
        "to the card, GB": gb(costs.to_device_bytes),
        "to the host, GB": gb(costs.to_host_bytes),
        "waits": f"{costs.waits.total():,}",
        "waits a microbatch": f"{update.waits_per_microbatch:,.1f}",
    }


def _print_waits(report: RankReport) -> None:
    waits = report.updates["update"].costs.waits
    if waits:
        shown = ", ".join(f"{line} {times:,}" for line, times in waits.most_common(_WAITS_SHOWN))
        print_line(f"Rank {report.rank} waits for its device in the update: {shown}")


def _verdict(measured: MeasuredUpdate, report: RankReport) -> str:
    processes = measured.work.processes or 1
    of = f" of {processes}" if processes > 1 else ""
    together = (
        f", all {counted(processes, 'process')} together" if measured.work.device == "cpu" and of else ""
    )
    word = "fits" if measured.fits(report) else "DOES NOT FIT"
    return (
        f"Rank {report.rank}{of}: {gb(measured.needed(report))} GB{together}, most of all in the "
        f"{report.peaks[measured.work.device].phase}; it {word} on {measured.card.name}, of whose "
        f"{measured.card.memory / 1e9:.0f} GB {100 * KEPT_FREE:.0f} % are kept free ({report.seconds:.0f} s)."
    )

"""How much memory a configuration needs, and for what: a part of `erl-pipeline doctor --config`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_line.output import print_line, print_table
from erl_pipeline.config.loading import load_config
from erl_pipeline.config.plugins import plugins
from erl_pipeline.config.run import RunConfig
from erl_pipeline.policies.model_size import ModelSize
from erl_pipeline.sizing.formulas import MemoryPart, estimate_memory, model_size, training_processes


@dataclass(frozen=True)
class MemoryNeeded:
    """The parts of an estimate, and their sum in each place that has memory of its own, in bytes."""

    config: Path
    resolved: RunConfig
    model: ModelSize
    parts: Sequence[MemoryPart]
    processes: int
    """Number of training processes; the parts under `trainer` are those of each process."""

    @property
    def totals(self) -> dict[str, int]:
        places = dict.fromkeys(part.place for part in self.parts)
        return {place: sum(part.bytes for part in self.parts if part.place == place) for place in places}

    def as_json(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        parts = [asdict(part) for part in self.parts]
        return {
            "model": asdict(self.model),
            "processes": self.processes,
            "parts": parts,
            "totals": self.totals,
        }

    def print(self) -> None:
        """Print a table with a row for each part, and one for the sum of each place."""
        print_line(f"Memory that {self.config} needs:")
        rows = []
        for place, total in self.totals.items():
            for part in self.parts:
                if part.place == place:
                    rows.append(
                        {"where": place, "what": part.name, "GB": gb(part.bytes), "bytes": part.reason}
                    )
            rows.append({"where": place, "what": "all", "GB": gb(total), "bytes": ""})
        print_table(rows, left=("where", "what", "bytes"))
        if self.processes > 1:
            print_line(
                f"trainer: each of the {self.processes} processes, on a GPU of its own or all in the memory "
                "of one machine."
            )
        keeps = plugins("engines")[self.resolved.engine.type].value.keeps_gpus_because(self.resolved.engine)
        if keeps and self.resolved.resources.groups is None:
            print_line(f"On GPUs: {keeps}.")
        print_line(
            "An estimate by arithmetic, without the program, its libraries and an engine's working memory."
        )


def memory_needed(config: Path, settings: Sequence[str], sequence_tokens: int | None) -> MemoryNeeded:
    """Estimate what training and sampling with a configuration need; no weights are loaded.

    Raises ConfigError for an invalid configuration, InputError for a model that is not on this machine.
    """
    resolved = load_config(config, settings)
    size = model_size(resolved)
    parts = estimate_memory(resolved, size, sequence_tokens)
    return MemoryNeeded(config, resolved, size, parts, training_processes(resolved) or 1)


def gb(count: int) -> str:
    """Bytes as a number of GB."""
    return f"{count / 1e9:.2f}"

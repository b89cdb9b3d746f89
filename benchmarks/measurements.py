"""Measuring contenders against each other: alternating runs, their spread, and where the results are written.

A benchmark is a script that calls itself: `main` runs every contender in turn, round after round. Each run is
a new process, started with `--contender NAME --figures FILE`, which writes its figures to the file. So no run
warms up another's caches, and the peak memory of a process is that of one contender.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import psutil

from storage.artifacts.manifest import code_version

SMOLLM2 = Path("models/SmolLM2-135M-Instruct")
RESULTS = Path(__file__).with_name("results")
README = Path(__file__).with_name("README.md")
ROOT = Path(__file__).parents[1]
_WRITTEN = (":!benchmarks/README.md", ":!benchmarks/results")
"""What a measurement writes itself."""
_LOOK_SECONDS = 0.005

Figures = dict[str, float]
"""The measurements of one run, by name."""


@dataclass(frozen=True)
class Column:
    """One figure in the tables; `factor` turns it into the unit of the title."""

    figure: str
    title: str
    digits: int = 1
    factor: float = 1.0


def median_and_range(values: Sequence[float], digits: int) -> str:
    """One figure over the runs, as a cell of a table."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def median_ratio(runs: Mapping[str, Sequence[Figures]], figure: str, ours: str, other: str) -> float:
    """The median, over the rounds, of our figure divided by the other's in the same round."""
    pairs = zip(runs[ours], runs[other], strict=True)
    return statistics.median(mine[figure] / theirs[figure] for mine, theirs in pairs)


def argument_parser(docstring: str) -> argparse.ArgumentParser:
    """A parser with the options that all scripts have; its description is the first paragraph of
    `docstring`."""
    parser = argparse.ArgumentParser(
        description=docstring.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each contender")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    add_write_arguments(parser)
    add_run_alone_arguments(parser)
    return parser


def add_run_alone_arguments(parser: argparse.ArgumentParser) -> None:
    """What `run_alone` gives to the process that it starts."""
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--figures", type=Path, help=argparse.SUPPRESS)


def add_write_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="write the result into benchmarks/README.md")
    parser.add_argument(
        "--allow-dirty", action="store_true", help="with --write: also with changes that are not committed"
    )


def parse_arguments(
    parser: argparse.ArgumentParser, given: Sequence[str] | None = None
) -> argparse.Namespace:
    """The arguments. Ends the script, before it measures, if it is to write a result that would name no
    clean commit: others could not get the code that was measured."""
    arguments = parser.parse_args(given)
    if arguments.write and not arguments.allow_dirty and (changes := uncommitted(ROOT)):
        parser.error(
            f"--write: there are changes that are not committed ({changes}); commit them first, or add "
            "--allow-dirty for a trial that is not kept"
        )
    return arguments


def uncommitted(checkout: Path) -> str:
    """The files of a checkout with changes, as git names them, without results; empty if there are none."""
    command = ["git", "-C", str(checkout), "status", "--porcelain", "-uall", "--", ".", *_WRITTEN]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return f"{checkout} is no git checkout"
    return ", ".join(line[3:] for line in done.stdout.splitlines())


def require_checkpoint(folder: Path) -> None:
    """End the script if SmolLM2's checkpoint is missing, and name the command that downloads it."""
    if not (folder / "model.safetensors").exists():
        sys.exit(f"{folder} is not there: run `make smollm2` first")


def alternate(
    contenders: Sequence[str], runs: int, arguments: Sequence[str] = (), script: str | None = None
) -> dict[str, list[Figures]]:
    """Run every contender in turn, `runs` times, each in a new process; return their figures.

    The order is reversed in every other round, so that no contender always follows the same other one.
    Raises `RuntimeError`, with the end of the contender's output, when a contender fails.
    """
    figures: dict[str, list[Figures]] = {contender: [] for contender in contenders}
    for round_ in range(runs):
        for contender in contenders if round_ % 2 == 0 else reversed(contenders):
            one = run_alone(contender, arguments, script or sys.argv[0])
            figures[contender].append(one)
            shown = "  ".join(f"{name} {value:.5g}" for name, value in one.items())
            print(f"run {round_ + 1}/{runs}  {contender}: {shown}", flush=True)
    return figures


def compare_contenders(
    name: str,
    contenders: Sequence[str],
    columns: Sequence[Column],
    arguments: argparse.Namespace,
    options: Sequence[str],
    packages: Sequence[str],
    measured: str = "",
) -> None:
    """Alternate the contenders, show the table, and with `--write` put it into benchmarks/README.md.

    Args:
        name: the name of the results and of their section in the README.
        contenders: the first is ours; the others are compared with it.
        options: command-line options of each run, besides the number of threads.
        packages: packages whose versions are reported.
        measured: what was measured, to be written before the number of runs; may be empty.
    """
    machine = describe_machine(arguments.threads, packages)
    runs = alternate(contenders, arguments.runs, [*options, "--threads", str(arguments.threads)])
    shown = print_table(runs, columns, contenders[0])
    if arguments.write:
        note = f"{measured}{arguments.runs} runs, medians (least to most)."
        publish(name, machine, runs, note, shown)


def run_alone(contender: str, arguments: Sequence[str], script: str) -> Figures:
    """The figures of one run in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, script, *arguments, "--contender", contender, "--figures", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{contender} failed with status {done.returncode}:\n{done.stdout[-4000:]}")
        figures: Figures = json.loads(file.read_text())
        return figures


def process_memory_and_cpu() -> Figures:
    """Peak resident memory of this process so far, and CPU seconds of all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {"peak_bytes": usage.ru_maxrss * 1024.0, "cpu_seconds": usage.ru_utime + usage.ru_stime}


class ResidentMemory:
    """Watches the resident memory of processes, without shared pages such as mapped files.

    `peak` is the largest value of any of them while it was watched, in bytes. Default: this process. Looking
    takes time itself: a measurement of seconds should look less often than `every` few milliseconds.
    """

    def __init__(self, processes: Sequence[psutil.Process] = (), every: float = _LOOK_SECONDS) -> None:
        self._every = every
        self._processes = list(processes) or [psutil.Process()]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak = 0

    def now(self) -> int:
        """The largest value of any of them at this moment, in bytes."""
        memory = [process.memory_info() for process in self._processes]
        return int(max(each.rss - each.shared for each in memory))

    def __enter__(self) -> ResidentMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self.now())
            if self._ended.wait(self._every):
                return


def describe_machine(threads: int, packages: Sequence[str]) -> dict[str, str | int | float]:
    """CPU, cores, memory, versions, the code's commit and the date."""
    described: dict[str, str | int | float] = {
        "date": datetime.now(UTC).date().isoformat(),
        "code": _code(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
    for package in packages:
        described[package] = metadata.version(package)
    return described


def _code() -> str:
    """The commit, with `-dirty` also where only a benchmark has changes."""
    version = code_version()
    return f"{version}-dirty" if uncommitted(ROOT) and not version.endswith("-dirty") else version


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return ", ".join(sorted(names)) or platform.processor()


def machine_line(machine: Mapping[str, str | int | float]) -> str:
    """The machine as one line of Markdown."""
    fixed = ("date", "code", "cpu", "cores", "threads", "memory_gib", "load_before", "python")
    versions = ", ".join(f"{name} {machine[name]}" for name in machine if name not in fixed)
    return (
        f"{machine['date']}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['threads']} threads, load {machine['load_before']} before the first run, Python "
        f"{machine['python']}, {versions}, code {str(machine['code'])[:12]}"
        f"{'-dirty' if str(machine['code']).endswith('-dirty') else ''}."
    )


def table(
    runs: Mapping[str, Sequence[Figures]], columns: Sequence[Column], ratio_of: Column, ours: str
) -> list[list[str]]:
    """Rows of cells, the heading first: each figure's median and range, and the ratio of ours to each."""
    head = ["contender", *(column.title for column in columns), f"{ours} / it, {ratio_of.title}"]
    rows = [head]
    for name, figures in runs.items():
        cells = [name]
        for column in columns:
            if any(column.figure not in one for one in figures):
                cells.append("")
                continue
            values = [figure[column.figure] * column.factor for figure in figures]
            cells.append(median_and_range(values, column.digits))
        cells.append("" if name == ours else f"{median_ratio(runs, ratio_of.figure, ours, name):.2f}")
        rows.append(cells)
    return rows


def print_table(runs: Mapping[str, Sequence[Figures]], columns: Sequence[Column], ours: str) -> str:
    """Print the runs, with the ratio of ours to each in the first column's figure; return the table in
    Markdown."""
    rows = table(runs, columns, columns[0], ours)
    print(as_text(rows), flush=True)
    return as_markdown(rows)


def as_text(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def as_markdown(rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def write_results(name: str, machine: Mapping[str, object], runs: Mapping[str, object]) -> Path:
    """Write all raw figures as JSON to `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")
    return file


def publish(
    name: str, machine: Mapping[str, str | int | float], runs: Mapping[str, object], note: str, tables: str
) -> None:
    """Write the raw figures, and `note`, the machine and the tables into the README's section `name`."""
    write_results(name, machine, runs)
    write_section(name, f"{note} {machine_line(machine)}\n\n{tables}")


def rewrite_section(document: str, name: str, body: str) -> str:
    """The document with `body` between the markers of the section `name`.

    Raises `ValueError` when the document does not have each marker once, in this order.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
        raise ValueError(f"the document needs the lines {begin} and {end} once each, in this order")
    head, _, rest = document.partition(begin)
    return f"{head}{begin}\n{body.strip()}\n{end}{rest.partition(end)[2]}"


def write_section(name: str, body: str) -> None:
    """Put a result into `benchmarks/README.md`."""
    README.write_text(rewrite_section(README.read_text(), name, body))

"""`erl-pipeline lineage`: where something came from, what it reached, and whether a run is undamaged."""

from __future__ import annotations

from dataclasses import asdict

import typer

from command_line.lineage import export, questions, reach, samples, showing, trained_on
from command_line.options import DEFAULT_STORE, ExistingStore, Json, RunName
from command_line.output import counted, print_json, print_line

app = typer.Typer(
    help="Follow artifacts and rows to what they came from and what they reached.", no_args_is_help=True
)
app.command("show")(showing.show)
app.command("upstream")(reach.upstream)
app.command("downstream")(reach.downstream)
app.command("rows-using-memory")(questions.rows_using_memory)
app.command("policies-trained-on")(questions.policies_trained_on)
app.command("trained-on")(trained_on.trained_on)
app.command("samples")(samples.samples)
app.command("made-by")(questions.made_by)
app.command("export")(export.export)
app.command("graph")(export.graph)


@app.command()
def verify(run: RunName, store: ExistingStore = DEFAULT_STORE, json: Json = False) -> None:
    """Hash every file of a run again, count rows and follow all links. Exit status 1 when one is wrong."""
    from storage.artifacts.store import ArtifactStore
    from storage.runs.run import RunStore
    from storage.upkeep.verification import verify_run

    found = verify_run(ArtifactStore(store), RunStore(store).open(run))
    if json:
        print_json(asdict(found))
    else:
        for problem in found.problems:
            print_line(f"wrong: {problem}")
        verdict = counted(len(found.problems), "problem") if found.problems else "all is whole"
        print_line(
            f"Run {run}: {verdict}. Checked {counted(found.artifacts, 'artifact')}, "
            f"{counted(found.files, 'file')}, {found.bytes / 1e6:,.1f} MB, "
            f"{counted(found.trajectories, 'trajectory', 'trajectories')}, "
            f"{counted(found.memory_entries, 'memory entry', 'memory entries')}, "
            f"{counted(found.sft_rows, 'SFT row')}."
        )
        if found.pruned_files:
            print_line(
                f"Pruned by retention: {counted(found.pruned_files, 'file')}, "
                f"{found.pruned_bytes / 1e6:,.1f} MB."
            )
        if found.problems:
            print_line("Damaged or missing artifacts are made again by: erl-pipeline train CONFIG --check")
    if found.problems:
        raise typer.Exit(1)

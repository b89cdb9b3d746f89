"""The reference has a text for everything that it lists."""

from __future__ import annotations

from pathlib import Path

from reference.commands import commands, commands_text
from reference.markdown import plain, table
from reference.metrics import metrics_text, shown_columns
from reference.settings import sections, settings_text
from reference.tables import documented_tables, tables_text

ROOT = Path(__file__).parents[2]


def _rows(text: str) -> list[list[str]]:
    """Cells of the tables' rows."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.replace("\\|", "/").strip("|").split("|")] for line in lines]


def test_markdown_is_safe_for_what_it_holds() -> None:
    assert (
        table(("a", "b"), [("x | y", "two\nlines")]) == "| a | b |\n| --- | --- |\n| x \\| y | two lines |\n"
    )
    assert plain("`<a>` and <b> in\n*x*") == "`<a>` and \\<b> in \\*x\\*"


def test_every_setting_has_a_meaning() -> None:
    without = [row for row in _rows(settings_text()) if len(row) == 4 and not row[3]]
    assert not without


def test_settings_of_all_types_are_there_under_anchors_of_their_own() -> None:
    found = sections()
    assert len({section.anchor for section in found}) == len(found)
    anchors = {section.anchor for section in found}
    assert {"run", "method-erl", "method-memory-erl", "environment-sokoban", "engine-servers-vllm"} <= anchors
    text = settings_text()
    assert "| `group_size` | whole number ≥ 1 | `8` |" in text
    assert "| `name` | text | must be set |" in text


def test_every_command_says_what_it_does_and_so_does_every_option() -> None:
    assert {("train",), ("replay",), ("memory", "search"), ("lineage", "verify")} <= {
        command.words for command in commands()
    }
    text = commands_text()
    assert not [row for row in _rows(text) if len(row) == 3 and not row[2]]
    assert "| `--mode` `vector/text/hybrid` |" in text.replace("\\|", "/")


def test_every_table_is_there_and_every_column_has_a_meaning() -> None:
    tables = documented_tables()
    assert tables[0].format.name == "trajectories"
    sources = [*(ROOT / "storage").rglob("*.py"), *(ROOT / "erl_pipeline").rglob("*.py")]
    defined = sum(
        source.read_text().count("TableFormat(") for source in sources if source.name != "parquet.py"
    )
    assert len(tables) == defined
    for each in tables:
        without = [name for name in each.format.schema.names if not each.meanings.get(name)]
        assert not without, each.format.name
    said = "Of a text, such as a reflection, that of the attempt that it led to."
    assert f"| `reward` | float | {said}" in tables_text()


def test_every_number_that_a_method_shows_is_there() -> None:
    columns = shown_columns()
    assert columns["evaluate/greedy_success"][1] == ["complementary", "erl", "prompt_evolution", "rlvr"]
    text = metrics_text()
    assert all(f"| `{name}` |" in text for name in columns)
    assert "| `mismatch_kl` | KL(sampler \\|\\| trainer) by the k3 estimator, nats a token. |" in text

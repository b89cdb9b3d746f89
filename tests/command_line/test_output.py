from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

import pytest
from rich.console import Console

from command_line import output

STEERING = "a\x1b]52;c;cm0=\x07b\x1b[2K\x9b1A"
SHOWN = "a␛]52;c;cm0=␇b␛[2K⟨U+009B⟩1A"


def test_what_a_policy_or_a_user_said_does_not_steer_the_terminal() -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        output.print_line(f"two\n\tlines: {STEERING} [bold]")
        output.print_table([{"text": STEERING}], left=["text"])
    lines = printed.getvalue().splitlines()
    assert lines[:2] == ["two", f"\tlines: {SHOWN} [bold]"]
    assert any(line.strip() == SHOWN for line in lines[2:])


def test_json_keeps_every_text_as_it_is() -> None:
    printed = io.StringIO()
    with redirect_stdout(printed):
        output.print_json({"text": STEERING})
    assert json.loads(printed.getvalue()) == {"text": STEERING}


@pytest.mark.parametrize(
    ("variable", "store", "option"),
    [
        (None, "store", []),
        (None, "other", ["--store", "other"]),
        ("other", "other", []),
        ("other", "store", ["--store", "store"]),
    ],
)
def test_a_printed_command_takes_the_same_store(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, store: str, option: list[str]
) -> None:
    monkeypatch.delenv("ERL_PIPELINE_STORE", raising=False)
    if variable is not None:
        monkeypatch.setenv("ERL_PIPELINE_STORE", variable)
    assert output.command(["status", "one"], store).split()[1:] == ["status", "one", *option]


def test_numbers_lose_no_digit_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"iter": str(n), "tokens": f"{n},234,567", "gain": "+0.242", "seconds": "123.4"} for n in (1, 20)]
    text = io.StringIO()
    monkeypatch.setattr(output, "wide_console", lambda: Console(width=21, file=text))
    output.print_table(rows)
    assert [line.split() for line in text.getvalue().splitlines() if line.strip(" ─")] == [
        ["iter", "tokens"],
        ["1", "1,234,567"],
        ["20", "20,234,567"],
        ["iter", "gain", "seconds"],
        ["1", "+0.242", "123.4"],
        ["20", "+0.242", "123.4"],
    ]


def test_names_can_be_read_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "frozen-lake.erl.search-473e8e.seed1000"
    row = {
        "run": name,
        "state": "finished",
        "files": "170.6 MB",
        "worked on by": "process 12345 on localhost",
    }

    def printed(columns: int) -> str:
        text = io.StringIO()
        monkeypatch.setattr(output, "wide_console", lambda: Console(width=columns, file=text))
        with redirect_stdout(text):
            output.print_table([row], left=["run", "state", "worked on by"])
        return text.getvalue()

    assert printed(50) == (
        f"{name}\n  state: finished; files: 170.6 MB; worked on by: process 12345 on localhost\n"
    )
    assert "…" not in printed(60)  # the name is on several lines

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout

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

"""What every template does with the texts that it is given."""

from __future__ import annotations

from erl_pipeline.views.report.templating import templates


def test_marks_that_nobody_sees_are_shown_wherever_a_text_is_written() -> None:
    page = templates(None, lambda *parts, **query: "").from_string("<p title='{{ text }}'>{{ text }}</p>")
    assert page.render(text="a\u202eb\x00\x1b") == "<p title='a⟨U+202E⟩b␀␛'>a⟨U+202E⟩b␀␛</p>"
    assert page.render(text="<\n\t>") == "<p title='&lt;\n\t&gt;'>&lt;\n\t&gt;</p>"

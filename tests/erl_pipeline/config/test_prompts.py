import pytest
from jinja2 import TemplateError

from erl_pipeline.config.prompts import check_template, render


def test_a_template_is_rendered_with_what_it_is_given() -> None:
    template = "{{ name }}:{% for word in words %}\n- {{ word }}{% endfor %}\n"
    assert check_template("greeting", template, {"name": "x", "words": ["y"]}) == template
    assert render(template, {"name": "Notes", "words": ["a", "b"]}) == "Notes:\n- a\n- b\n"


def test_an_unknown_variable_is_refused_with_those_that_are_known() -> None:
    message = "greeting: the template uses the unknown variable 'nme'; known variables: name"
    with pytest.raises(ValueError, match=message):
        check_template("greeting", "{{ nme }}", {"name": "x"})


def test_a_template_that_cannot_be_read_is_told_in_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"expected 'end of print statement'; known variables: name$"):
        check_template("greeting", "{{ name", {"name": "x"})


def test_a_template_has_no_way_to_python() -> None:
    with pytest.raises(TemplateError):
        render("{{ name.__class__.__mro__ }}", {"name": "x"})

"""The templates that the page and the report share."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined

from erl_pipeline.views.report.texts import (
    ago,
    bytes_text,
    number,
    pretty,
    printable,
    seconds_text,
    short,
    signed,
    visible,
    words,
)

_PACKAGE = "erl_pipeline.views.report"
Address = Callable[..., str]
"""Gives the address of a page on a server, from the parts of its path and a query; empty if there is none."""


def templates(own: BaseLoader | None, address: Address) -> Environment:
    """The shared templates; a page's own templates come before them. Every value that they get is escaped."""
    shared = PackageLoader(_PACKAGE)
    environment = Environment(
        loader=shared if own is None else ChoiceLoader([own, shared]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    environment.globals["address"] = address
    environment.filters.update(
        ago=ago,
        number=number,
        signed=signed,
        printable=printable,
        short=short,
        bytes=bytes_text,
        seconds=seconds_text,
        words=words,
        pretty=pretty,
    )
    return environment


def static_text(name: str) -> str:
    """A style sheet or script of the pages."""
    return files(_PACKAGE).joinpath("static").joinpath(*name.split("/")).read_text(encoding="utf-8")

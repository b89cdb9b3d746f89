"""The templates that the page and the report share."""

from collections.abc import Callable
from importlib.resources import files

from jinja2 import BaseLoader, ChoiceLoader, Environment, PackageLoader, StrictUndefined

from erl_pipeline.views.report import texts

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
        finalize=texts.visible,
    )
    environment.globals["address"] = address
    environment.filters.update(
        ago=texts.ago,
        number=texts.number,
        signed=texts.signed,
        percent=texts.percent,
        printable=texts.printable,
        short=texts.short,
        bytes=texts.bytes_text,
        seconds=texts.seconds_text,
        words=texts.words,
        pretty=texts.pretty,
    )
    return environment


def static_text(name: str) -> str:
    """A style sheet or script of the pages."""
    return files(_PACKAGE).joinpath("static").joinpath(*name.split("/")).read_text(encoding="utf-8")

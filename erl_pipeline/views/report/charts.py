"""Line charts as SVG files. A style sheet gives the colours, so that charts follow a light or dark page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from xml.etree import ElementTree

WIDTH, HEIGHT = 420.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 50.0, 14.0, 12.0, 40.0


@dataclass(frozen=True)
class Series:
    """One line: `y` over `x`, with a band between `low` and `high` if both are given.

    `style` is the number of its colour and dashes, from 1, so that a line looks the same in several charts.
    None: the number of its place in the chart.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: int | None = None


@dataclass(frozen=True)
class Chart:
    """Several series on one pair of axes. The vertical axis covers `y_range`, or else the data and 0, so that
    small changes look small."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    y_range: tuple[float, float] | None = None
    note: str = ""


@dataclass(frozen=True)
class _Axis:
    """A linear scale from data to pixels."""

    start: float
    end: float
    first_pixel: float
    last_pixel: float

    def pixel(self, value: float) -> float:
        share = (value - self.start) / (self.end - self.start)
        return self.first_pixel + share * (self.last_pixel - self.first_pixel)


def chart_svg(chart: Chart) -> str:
    """The chart as an `<svg>` element that can be a file by itself, with style sheet, title and legend.

    Lines carry the classes `series-1`, `series-2`, ...; the style sheet gives them colour and dashes.
    Points that are not finite are left out. Raises ValueError for a chart without any point.
    """
    series = [_finite(one) for one in chart.series]
    xs = [x for one in series for x in one.x]
    if not xs:
        raise ValueError(f"the chart {chart.title!r} has no point to draw")
    ys = [y for one in series for values in (one.y, one.low or (), one.high or ()) for y in values]
    x_axis = _Axis(*_widened(min(xs), max(xs)), LEFT, WIDTH - RIGHT)
    rounded = ticks(*_widened(min(0.0, *ys), max(0.0, *ys)))
    y_axis = _Axis(*(chart.y_range or (rounded[0], rounded[-1])), HEIGHT - BOTTOM, TOP)

    top = 28.0 + 18.0 * len(series)
    svg = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 {_number(-top)} {_number(WIDTH)} {_number(HEIGHT + top)}",
            "class": "chart",
            "role": "img",
            "aria-label": describe(chart),
        },
    )
    templates = files("erl_pipeline.views.report").joinpath("templates")
    style = templates.joinpath("chart.css").read_text(encoding="utf-8")
    ElementTree.SubElement(svg, "style").text = style
    _text(svg, chart.title, LEFT, -top + 16, "title")
    for index, one in enumerate(series):
        height = -top + 34 + 18 * index
        _line(svg, [(LEFT, height), (LEFT + 26, height)], f"line {_style(one, index)}")
        _text(svg, one.label, LEFT + 34, height + 4, "legend")
    _draw_axes(svg, chart, x_axis, y_axis, whole=all(float(x).is_integer() for x in xs))
    for index, one in enumerate(series):
        _draw_series(svg, one, x_axis, y_axis, _style(one, index))
    return ElementTree.tostring(svg, encoding="unicode")


def describe(chart: Chart) -> str:
    """The chart in words, for people who cannot see it: the first and last value of each line."""
    parts = []
    for one in map(_finite, chart.series):
        if one.x:
            parts.append(f"{one.label} from {short_number(one.y[0])} to {short_number(one.y[-1])}")
    return f"{chart.title}: {'; '.join(parts)}."


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round positions (steps of 1, 2 or 5 times a power of ten) that enclose `low` and `high`."""
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def short_number(value: float) -> str:
    """A number as an axis shows it: `0.25`, `1500`, `12k`, `3.4M`, `2e-5`."""
    size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            unit = 1e3 if letter == "k" else limit
            return f"{value / unit:.3g}{letter}"
    if value == 0 or size >= 1e-3:
        return f"{value:.4g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _widened(low: float, high: float) -> tuple[float, float]:
    """Widen a range of no width (one point, a flat line); it stays above 0 if the data is."""
    if low < high:
        return low, high
    margin = abs(low) / 2 or 0.5
    return (low - margin if low else low), high + margin


def _finite(series: Series) -> Series:
    kept = [index for index, y in enumerate(series.y) if math.isfinite(y)]
    band = series.low is not None and series.high is not None
    return Series(
        series.label,
        [series.x[index] for index in kept],
        [series.y[index] for index in kept],
        [series.low[index] for index in kept] if band and series.low is not None else None,
        [series.high[index] for index in kept] if band and series.high is not None else None,
        series.style,
    )


def _style(series: Series, index: int) -> str:
    """The class that gives a line its colour and dashes."""
    return f"series-{index + 1 if series.style is None else series.style}"


def _draw_axes(svg: ElementTree.Element, chart: Chart, x_axis: _Axis, y_axis: _Axis, whole: bool) -> None:
    """Draw axes, grid and labels; `whole` keeps the horizontal ticks to whole numbers."""
    for tick in ticks(y_axis.start, y_axis.end):
        if y_axis.start <= tick <= y_axis.end:
            height = y_axis.pixel(tick)
            _line(svg, [(LEFT, height), (WIDTH - RIGHT, height)], "grid")
            _text(svg, short_number(tick), LEFT - 6, height + 4, "tick", anchor="end")
    for tick in ticks(x_axis.start, x_axis.end):
        if x_axis.start <= tick <= x_axis.end and (tick.is_integer() or not whole):
            position = x_axis.pixel(tick)
            _line(svg, [(position, HEIGHT - BOTTOM), (position, HEIGHT - BOTTOM + 4)], "axis")
            _text(svg, short_number(tick), position, HEIGHT - BOTTOM + 17, "tick", anchor="middle")
    _line(svg, [(LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM)], "axis")
    _text(svg, chart.x_label, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "label", anchor="middle")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    label = _text(svg, chart.y_label, 12, middle, "label", anchor="middle")
    label.set("transform", f"rotate(-90 12 {_number(middle)})")


def _draw_series(svg: ElementTree.Element, series: Series, x_axis: _Axis, y_axis: _Axis, name: str) -> None:
    group = ElementTree.SubElement(svg, "g", {"class": name})
    xs = [x_axis.pixel(x) for x in series.x]
    if series.low is not None and series.high is not None and len(xs) > 1:
        upper = [(x, y_axis.pixel(y)) for x, y in zip(xs, series.high, strict=True)]
        lower = [(x, y_axis.pixel(y)) for x, y in zip(xs, series.low, strict=True)]
        ElementTree.SubElement(group, "polygon", {"class": "band", "points": _points(upper + lower[::-1])})
    points = [(x, y_axis.pixel(y)) for x, y in zip(xs, series.y, strict=True)]
    _line(group, points, f"line {name}")
    radius = "2.4" if len(points) <= 60 else "1.2"
    for (x, y), position, value in zip(points, series.x, series.y, strict=True):
        place = {"class": "marker", "cx": _number(x), "cy": _number(y), "r": radius}
        hint = ElementTree.SubElement(ElementTree.SubElement(group, "circle", place), "title")
        hint.text = f"{series.label}: {short_number(value)} at {short_number(position)}"


def _line(parent: ElementTree.Element, points: Sequence[tuple[float, float]], name: str) -> None:
    ElementTree.SubElement(parent, "polyline", {"class": name, "points": _points(points)})


def _text(
    parent: ElementTree.Element, text: str, x: float, y: float, name: str, anchor: str = "start"
) -> ElementTree.Element:
    attributes = {"class": name, "x": _number(x), "y": _number(y), "text-anchor": anchor}
    element = ElementTree.SubElement(parent, "text", attributes)
    element.text = text
    return element


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

"""Line charts as SVG files. A style sheet gives the colours, so that charts follow a light or dark page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from erl_pipeline.views.report.templating import templates

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

    def ticks(self) -> list[float]:
        return [tick for tick in ticks(self.start, self.end) if self.start <= tick <= self.end]


@dataclass(frozen=True)
class _Line(Series):
    """A series whose values are all finite."""

    def places(self, values: Sequence[float], x_axis: _Axis, y_axis: _Axis) -> list[tuple[float, float]]:
        """Where values over `x` are drawn, in pixels."""
        return [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in zip(self.x, values, strict=True)]


def chart_svg(chart: Chart) -> str:
    """The chart as an `<svg>` element that can be a file by itself, with style sheet, title and legend.

    Lines carry the classes `series-1`, `series-2`, ...; the style sheet gives them colour and dashes.
    Points that are not finite are left out. Raises ValueError for a chart without any point.
    """
    series = _finite(chart)
    xs = [x for one in series for x in one.x]
    if not xs:
        raise ValueError(f"the chart {chart.title!r} has no point to draw")
    ys = [y for one in series for values in (one.y, one.low or (), one.high or ()) for y in values]
    rounded = ticks(*_widened(min(0.0, *ys), max(0.0, *ys)))
    drawing = templates(None, lambda *_: "")
    drawing.filters.update(pixels=_number, short_number=short_number)
    return drawing.get_template("chart.svg.j2").render(
        chart=chart,
        description=describe(chart),
        series=series,
        x_axis=_Axis(*_widened(min(xs), max(xs)), LEFT, WIDTH - RIGHT),
        y_axis=_Axis(*(chart.y_range or (rounded[0], rounded[-1])), HEIGHT - BOTTOM, TOP),
        whole=all(float(x).is_integer() for x in xs),  # then only whole numbers stand below
        head=28.0 + 18.0 * len(series),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        foot=HEIGHT - BOTTOM,
        middle=(TOP + HEIGHT - BOTTOM) / 2,
    )


def describe(chart: Chart) -> str:
    """The chart in words, for people who cannot see it: the first and last value of each line."""
    parts = []
    for one in _finite(chart):
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
    """A number as an axis shows it: `0.25`, `1,500`, `12k`, `3.4M`, `2e-5`."""
    size = abs(value)
    if size >= 9999.5:  # what is rounded up to the next unit is written in it
        value = float(f"{value:.3g}")
        size = abs(value)
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            unit = 1e3 if letter == "k" else limit
            return f"{value / unit:.3g}{letter}"
    if value == 0 or size >= 1e-3:
        return f"{value:,.4g}"
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _widened(low: float, high: float) -> tuple[float, float]:
    """Widen a range of no width (one point, a flat line); it stays above 0 if the data is."""
    if low < high:
        return low, high
    margin = abs(low) / 2 or 0.5
    return (low - margin if low else low), high + margin


def _finite(chart: Chart) -> list[_Line]:
    """The lines with their finite points only, each with its style."""
    lines = []
    for place, one in enumerate(chart.series, start=1):
        kept = [index for index, y in enumerate(one.y) if math.isfinite(y)]
        x, y, low, high = (
            None if values is None else [values[index] for index in kept]
            for values in (one.x, one.y, one.low, one.high)
        )
        lines.append(_Line(one.label, x or (), y or (), low, high, place if one.style is None else one.style))
    return lines


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

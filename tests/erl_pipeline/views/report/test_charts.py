from __future__ import annotations

from xml.etree import ElementTree

import pytest

from erl_pipeline.views.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Series,
    chart_svg,
    describe,
    short_number,
    ticks,
)


def drawn(chart: Chart) -> ElementTree.Element:
    """The SVG without its name space."""
    return ElementTree.fromstring(chart_svg(chart).replace(' xmlns="', ' about="'))


def of_class(svg: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in svg.iter() if element.get("class") == name]


def test_ticks_are_round_and_enclose_the_data() -> None:
    assert ticks(0.0, 1.0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(0.0, 0.9, most=5) == [0.0, 0.5, 1.0]
    assert ticks(0, 40) == [0, 10, 20, 30, 40]
    assert ticks(-0.03, 0.11) == [-0.05, 0.0, 0.05, 0.1, 0.15]


def test_numbers_are_short() -> None:
    assert [short_number(value) for value in (0, 0.25, 3907, 12000, 3.4e6, 0.00002, -45000)] == [
        "0",
        "0.25",
        "3,907",
        "12k",
        "3.4M",
        "2e-5",
        "-45k",
    ]


def test_a_number_that_is_rounded_up_to_a_unit_is_written_in_it() -> None:
    assert [short_number(value) for value in (9999.4, 9999.6, 999_499, 999_501)] == [
        "9,999",
        "10k",
        "999k",
        "1M",
    ]


def test_points_lie_where_the_axes_say() -> None:
    svg = drawn(Chart("Success", "iteration", "success", [Series("run", [0, 10], [0.0, 1.0])], (0.0, 1.0)))
    line = of_class(svg, "line series-1")[-1]  # the first is the legend's
    assert line.get("points") == f"{LEFT:g},{HEIGHT - BOTTOM:g} {WIDTH - RIGHT:g},{TOP:g}"


def test_band_runs_along_the_upper_and_back_along_the_lower_end() -> None:
    series = Series("run", [0, 1], [0.5, 0.5], low=[0.25, 0.25], high=[0.75, 0.75])
    svg = drawn(Chart("Success", "iteration", "success", [series], (0.0, 1.0)))
    corners = [corner.split(",") for corner in (of_class(svg, "band")[0].get("points") or "").split()]
    quarter = (HEIGHT - BOTTOM - TOP) / 4
    heights = [float(height) for _, height in corners]
    assert heights == pytest.approx(
        [TOP + quarter, TOP + quarter, TOP + 3 * quarter, TOP + 3 * quarter], abs=0.06
    )


def test_values_that_are_not_finite_are_left_out() -> None:
    svg = drawn(Chart("Loss", "iteration", "nats", [Series("RL", [1, 2, 3], [0.1, float("nan"), 0.3])]))
    assert len(of_class(svg, "marker")) == 2


def test_a_flat_line_and_a_single_point_can_be_drawn() -> None:
    assert of_class(drawn(Chart("Flat", "x", "y", [Series("a", [1, 2], [0.0, 0.0])])), "marker")
    assert of_class(drawn(Chart("One", "x", "y", [Series("a", [1], [5.0])])), "marker")


def test_a_chart_without_points_is_refused() -> None:
    with pytest.raises(ValueError, match="'Empty' has no point"):
        chart_svg(Chart("Empty", "x", "y", [Series("a", [], [])]))


def test_labels_are_escaped_and_the_chart_is_described() -> None:
    chart = Chart("<script>", "x", "y", [Series("a & b", [0, 1], [0.2, 0.8])])
    assert "<script>" not in chart_svg(chart)
    assert describe(chart) == "<script>: a & b from 0.2 to 0.8."


def test_a_chart_brings_its_style_title_and_legend() -> None:
    series = [Series("erl", [0, 1], [0.2, 0.8]), Series("rlvr", [0, 1], [0.2, 0.6])]
    svg = drawn(Chart("Methods", "tokens", "success", series))
    style = svg.find("style")
    assert style is not None
    assert "--series-1" in (style.text or "")
    assert [element.text for element in of_class(svg, "legend")] == ["erl", "rlvr"]

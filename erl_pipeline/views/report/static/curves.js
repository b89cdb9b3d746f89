// Draws the curves of runs with uPlot: one pointer for all charts, smoothing without asking the server again.
"use strict";

const place = document.querySelector("[data-curves]");
const slider = document.querySelector('#curve-controls [name="smooth"]');
let drawn = [];
let read = null;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [1, 2]];

// An exponential mean that begins at the first value; what is missing stays missing.
function smoothed(values, weight) {
  let mean = null;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = mean === null ? value : weight * mean + (1 - weight) * value;
    return mean;
  });
}

function shown(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return size < 1e-3 ? value.toExponential(1) : String(+value.toPrecision(3));
}

// Runs have values at different places: each line shows its own value nearest to the pointer.
function nearest(chart, line, index) {
  const values = chart.data[line];
  if (line === 0 || values[index] !== null && values[index] !== undefined) return index;
  for (let away = 1; away < values.length; away++) {
    for (const other of [index - away, index + away]) {
      if (values[other] !== null && values[other] !== undefined) return other;
    }
  }
  return index;
}

const weight = () => slider ? Number(slider.value) : Number(place.dataset.smooth || 0);
const banded = (one) => one.low !== null && weight() === 0;

// The numbers of a chart as uPlot takes them: a band's two ends stand behind its line.
function numbers(chart) {
  return uPlot.join(chart.series.map((one) => {
    const y = smoothed(one.y, weight());
    return banded(one) ? [one.x, y, one.low, one.high] : [one.x, y];
  }));
}

function described(chart) {
  return chart.title + ": " + chart.series.map((one) => `${one.label} from ${shown(one.y[0])} to ${shown(one.y.at(-1))}`).join("; ");
}

// uPlot gives a single point a scale from 0 to 100, or to its double. Here it has room of its own on both sides.
function across(chart, low, high) {
  const x = chart.data[0];
  if (x.length !== 1) return [low, high];
  const room = read.x === "iteration" ? 1 : x[0] / 2 || 1;
  return [Math.max(0, x[0] - room), x[0] + room];
}

// Times in which stages were at work, as stripes above the lines, one height for each colour.
function stripes(chart) {
  const unit = devicePixelRatio;
  const { left, top, width } = chart.bbox;
  for (const [lane, begin, end] of read.spans || []) {
    const from = Math.max(left, chart.valToPos(begin, "x", true));
    const to = Math.min(left + width, Math.max(chart.valToPos(end, "x", true), from + unit));
    if (to <= from) continue;
    chart.ctx.fillStyle = colour(`--series-${lane}`);
    chart.ctx.fillRect(from, top + (lane - 7) * 4 * unit, to - from, 3 * unit);
  }
}

// The same lines with more points are put into the charts that are there; what was looked at closely stays so.
function grow(found) {
  const lines = (charts) => JSON.stringify(charts.map((chart) => [chart.title, chart.series.map((one) => [one.label, banded(one)])]));
  const same = read && lines(read.charts) === lines(found.charts);
  read = found;
  if (!same) return draw();
  drawn.forEach((chart, index) => {
    const x = chart.data[0];
    const whole = chart.scales.x.min <= x[0] && chart.scales.x.max >= x.at(-1);
    chart.setData(numbers(found.charts[index]), whole);
    if (!whole) chart.redraw();
    chart.root.parentElement.setAttribute("aria-label", described(found.charts[index]));
  });
}

function draw() {
  drawn.forEach((chart) => chart.destroy());
  drawn = [];
  place.replaceChildren();
  if (!read.charts.length) {
    const nothing = document.createElement("p");
    nothing.className = "empty";
    nothing.textContent = "No numbers yet: the first iteration is not done.";
    place.append(nothing);
  }
  for (const chart of read.charts) {
    const card = document.createElement("figure");
    card.className = "chart";
    card.style.margin = "0";
    const title = document.createElement("h2");
    title.textContent = chart.title;
    const note = document.createElement("div");
    note.className = "faint";
    note.textContent = chart.note;
    const plot = document.createElement("div");
    plot.className = "plot";
    card.append(title, note, plot);
    place.append(card);
    const series = [{ label: read.x, value: (_, value) => shown(value) }];
    const bands = [];
    for (const one of chart.series) {
      const line = colour(`--series-${one.colour}`);
      series.push({
        label: one.label, stroke: line, width: 2, dash: DASHES[one.dashes % DASHES.length], spanGaps: true,
        points: { size: one.x.length > 60 ? 0 : 5, fill: line }, value: (_, value) => shown(value),
      });
      if (banded(one)) {
        for (const end of ["low", "high"]) {
          series.push({ label: `${end} end`, class: "band-end", stroke: "transparent", width: 0, spanGaps: true, points: { show: false }, value: (_, value) => shown(value) });
        }
        bands.push({ series: [series.length - 1, series.length - 2], fill: line + "22" });
      }
    }
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule") }, font: "11px system-ui, sans-serif" };
    drawn.push(new uPlot({
      width: plot.clientWidth, height: 220, series, bands,
      // A flat line lies in the middle, not at the foot of a scale to 100.
      scales: { x: { time: false, range: across }, y: { range: chart.share ? [0, 1] : (_, low, high) => low === high ? [low - 1, high + 1] : uPlot.rangeNum(low, high, 0.1, true) } },
      axes: [{ ...axis, ...(read.x === "iteration" ? { incrs: WHOLE } : {}), values: (_, ticks) => ticks.map(shown) }, { ...axis, size: 52, values: (_, ticks) => ticks.map(shown) }],
      cursor: { sync: { key: "runs" }, points: { size: 7 }, dataIdx: nearest },
      legend: { live: true },
      ...(read.spans ? { padding: [26, null, null, null], hooks: { draw: [stripes] } } : {}),
    }, numbers(chart), plot));
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", described(chart));
  }
}

if (place) {
  const from = place.dataset.curves;
  const ask = () => fetch(from).then((answer) => answer.json()).then(grow);
  // A report has the numbers in itself; a server is asked for them, and again when they change.
  if (from.startsWith("#")) grow(JSON.parse(document.querySelector(from).textContent));
  else {
    ask();
    document.addEventListener("runchange", ask);
    if (place.dataset.seconds) setInterval(ask, 1000 * place.dataset.seconds);
  }
  document.addEventListener("themechange", () => read && draw());
  let waiting = null;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => drawn.forEach((chart) => chart.setSize({ width: chart.root.parentElement.clientWidth, height: 220 })), 120);
  });
  if (slider) slider.addEventListener("input", () => {
    document.getElementById("smooth-value").textContent = slider.value;
    if (!place.dataset.curves.startsWith("#")) {
      const address = new URL(location.href);
      address.searchParams.set("smooth", slider.value);
      history.replaceState(null, "", address);
    }
    if (read) draw();
  });
}

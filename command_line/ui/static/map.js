// The map of a memory: dots on a canvas, and a rectangle over them that becomes part of the address.
"use strict";

const map = document.getElementById("memory-map");
const MARGIN = 14;
const SMALLEST = 5;

function axis(values) {
  const low = values.reduce((a, b) => Math.min(a, b), Infinity);
  const high = values.reduce((a, b) => Math.max(a, b), -Infinity);
  return low < high ? [low, high] : [low - 1, high + 1];
}

// A range as the address has it; an open side of the rectangle reaches to the end of the map.
function range(field, whole) {
  const ends = field.value.split("..").map(Number);
  return ends.length === 2 && field.value && ends.every(Number.isFinite) ? ends : whole;
}

function colours(kind) {
  const style = getComputedStyle(document.documentElement);
  const parts = (name) => style.getPropertyValue(name).trim().split(" ").map(Number);
  const mix = (a, b, share) => a.map((part, place) => Math.round(part + (b[place] - part) * share));
  const of = (name) => style.getPropertyValue(name).trim();
  if (kind === "iteration") {
    const [early, late] = [parts("--early"), parts("--late")];
    return (share) => `rgb(${mix(early, late, share).join(" ")})`;
  }
  const [heat, cold, none] = [parts("--heat"), parts("--cold"), `color-mix(in srgb, ${of("--faint")} 45%, transparent)`];
  return (share) => share === 0.5 ? none : `rgb(${(share > 0.5 ? heat : cold).join(" ")} / ${(0.25 + 1.5 * Math.abs(share - 0.5)).toFixed(2)})`;
}

class MemoryMap {
  constructor(place, found) {
    this.place = place;
    this.canvas = place.querySelector("canvas");
    this.found = found;
    this.kind = place.dataset.colour;
    this.spans = { across: axis(found.across), up: axis(found.up) };
    this.fields = { across: document.querySelector('[name="across"]'), up: document.querySelector('[name="up"]') };
    // An empty field says from where to where the map goes.
    for (const name of ["across", "up"]) this.fields[name].placeholder = this.spans[name].map((value) => value.toFixed(2)).join("..");
    this.asked = this.fields.across.value || this.fields.up.value ? this.asFields() : null;
    this.scale();
    this.draw();
    this.legend();
    this.listen();
  }

  asFields() {
    return { across: range(this.fields.across, this.spans.across), up: range(this.fields.up, this.spans.up) };
  }

  // The least and the largest value as the ends of the colours; credit has 0 in their middle. What says most
  // is drawn last, over the others.
  scale() {
    const [low, high] = axis(this.found.values);
    const far = Math.max(Math.abs(low), Math.abs(high));
    const values = this.found.values;
    this.ends = this.kind === "credit" ? (values.every((value) => value === 0) ? [-1, 1] : [-far, far]) : [Math.min(...new Set(values)), Math.max(...new Set(values))];
    const weight = (value) => this.kind === "credit" ? Math.abs(value) : value;
    this.order = values.map((_, place) => place).sort((a, b) => weight(values[a]) - weight(values[b]));
  }

  share(value) {
    const [low, high] = this.ends;
    return high > low ? (value - low) / (high - low) : 1;
  }

  pixel(name, value) {
    const [low, high] = this.spans[name];
    const share = (value - low) / (high - low);
    const length = name === "across" ? this.canvas.clientWidth : this.canvas.clientHeight;
    return MARGIN + (name === "across" ? share : 1 - share) * (length - 2 * MARGIN);
  }

  value(name, pixel) {
    const [low, high] = this.spans[name];
    const length = name === "across" ? this.canvas.clientWidth : this.canvas.clientHeight;
    const share = (pixel - MARGIN) / (length - 2 * MARGIN);
    return low + (name === "across" ? share : 1 - share) * (high - low);
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const density = devicePixelRatio || 1;
    this.canvas.width = width * density;
    this.canvas.height = height * density;
    const context = this.canvas.getContext("2d");
    context.scale(density, density);
    const colour = colours(this.kind);
    const { across, up, values } = this.found;
    const radius = across.length > 3000 ? 1.8 : across.length > 400 ? 2.8 : 4.5;
    for (const i of this.order) {
      context.fillStyle = colour(this.share(values[i]));
      context.beginPath();
      context.arc(this.pixel("across", across[i]), this.pixel("up", up[i]), radius, 0, 2 * Math.PI);
      context.fill();
    }
    if (!this.asked) return;
    const [left, right] = this.asked.across.map((value) => this.pixel("across", value));
    const [bottom, top] = this.asked.up.map((value) => this.pixel("up", value));
    const style = getComputedStyle(document.documentElement);
    context.strokeStyle = style.getPropertyValue("--accent").trim();
    context.lineWidth = 2;
    context.strokeRect(left, top, right - left, bottom - top);
    context.fillStyle = `rgb(${style.getPropertyValue("--heat").trim()} / .08)`;
    context.fillRect(left, top, right - left, bottom - top);
  }

  legend() {
    const write = (name, text) => { document.querySelector(name).textContent = text; };
    const sign = this.kind === "credit" ? (value) => (value > 0 ? "+" : "") + value.toFixed(3) : String;
    write(".map-legend .least", `${this.kind} ${sign(this.ends[0])}`);
    write(".map-legend .most", sign(this.ends[1]));
    const shares = this.found.shares.map((share) => `${(100 * share).toFixed(0)} %`);
    write(".map-shares", `Of what differs between the vectors, ${shares[0]} lie across and ${shares[1]} up.`);
  }

  // What the rectangle holds, as text in the fields of the form.
  write() {
    for (const name of ["across", "up"]) {
      this.fields[name].value = this.asked ? this.asked[name].map((value) => value.toFixed(4)).join("..") : "";
    }
  }

  list() {
    this.write();
    this.fields.across.form.requestSubmit();
  }

  listen() {
    let begun = null;
    let before = null;
    const at = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const between = (a, b) => ({
      across: [this.value("across", Math.min(a[0], b[0])), this.value("across", Math.max(a[0], b[0]))],
      up: [this.value("up", Math.max(a[1], b[1])), this.value("up", Math.min(a[1], b[1]))],
    });
    this.canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      begun = at(event);
      before = this.asked;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!begun) return;
      this.asked = between(begun, at(event));
      this.write();
      this.draw();
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (!begun) return;
      const end = at(event);
      const click = Math.hypot(end[0] - begun[0], end[1] - begun[1]) < SMALLEST;
      this.asked = click ? between([end[0] - 12, end[1] - 12], [end[0] + 12, end[1] + 12]) : between(begun, end);
      begun = null;
      this.draw();
      this.list();
    });
    // A finger that scrolls the page instead leaves what was there.
    this.canvas.addEventListener("pointercancel", () => { begun = null; this.asked = before; this.write(); this.draw(); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    const redraw = () => this.draw();
    document.addEventListener("themechange", redraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("resize", redraw);
    for (const field of Object.values(this.fields)) {
      field.addEventListener("input", () => { this.asked = this.asFields(); this.draw(); });
    }
  }

  key(event) {
    const step = { ArrowLeft: ["across", -1], ArrowRight: ["across", 1], ArrowDown: ["up", -1], ArrowUp: ["up", 1] }[event.key];
    if (event.key === "Enter" && this.asked) return this.list();
    if (event.key === "Escape" && this.asked) {
      this.asked = null;
      return this.list();
    }
    if (!step) return;
    event.preventDefault();
    const [name, way] = step;
    if (!this.asked) {
      // It begins as the middle quarter of the map.
      const middle = ([low, high]) => [low + 3 * (high - low) / 8, high - 3 * (high - low) / 8];
      this.asked = { across: middle(this.spans.across), up: middle(this.spans.up) };
    }
    const far = way * (this.spans[name][1] - this.spans[name][0]) / 20;
    const [low, high] = this.asked[name];
    this.asked[name] = event.shiftKey ? [low, Math.max(low, high + far)] : [low + far, high + far];
    this.write();
    this.draw();
  }
}

if (map) {
  const state = map.querySelector(".map-state");
  fetch(map.dataset.points).then((answer) => {
    if (!answer.ok) throw new Error("The map cannot be made; the list below says what is wrong when it is loaded again.");
    return answer.json();
  }).then((found) => {
    state.textContent = found.across.length ? "" : "No entry of this kind is on the map.";
    if (found.across.length) new MemoryMap(map, found);
  }).catch((error) => { state.textContent = error.message; });
}

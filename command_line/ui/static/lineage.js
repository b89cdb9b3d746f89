// Lines between the cards of a lineage, from what a thing was made of to the thing.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

const lineage = document.querySelector(".lineage[data-links]");
if (lineage) {
  const links = JSON.parse(lineage.dataset.links);
  const cards = new Map([...lineage.querySelectorAll("[data-thing]")].map((card) => [card.dataset.thing, card]));
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("aria-hidden", "true");
  drawing.setAttribute("class", "links");
  drawing.innerHTML = '<defs><marker id="arrow" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto-start-reverse"><path d="M0,0 L6,3 L0,6 z"/></marker></defs>';
  const lines = drawing.appendChild(document.createElementNS(SVG, "g"));
  lineage.prepend(drawing);

  const draw = () => {
    lines.replaceChildren();
    // Measured without the drawing, which would keep the area as wide as it was.
    drawing.setAttribute("width", 0);
    drawing.setAttribute("height", 0);
    drawing.setAttribute("width", lineage.scrollWidth);
    drawing.setAttribute("height", lineage.scrollHeight);
    const area = lineage.getBoundingClientRect();
    const place = (card) => {
      const box = card.getBoundingClientRect();
      const left = box.left - area.left + lineage.scrollLeft;
      return { left, right: left + box.width, middle: box.top - area.top + box.height / 2 };
    };
    for (const [from, to] of links) {
      const start = place(cards.get(from));
      const end = place(cards.get(to));
      // A thing can stand before what it was made of, since columns count steps from the thing in the middle.
      const back = end.left < start.left;
      const beside = end.left === start.left;
      const [first, last] = back ? [start.left, end.right] : [start.right, beside ? end.right : end.left];
      const bend = beside ? 24 : Math.max(12, Math.abs(last - first) / 2);
      const bends = [first + (back ? -bend : bend), last + (back || beside ? bend : -bend)];
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", `M${first},${start.middle} C${bends[0]},${start.middle} ${bends[1]},${end.middle} ${last},${end.middle}`);
      path.setAttribute("marker-end", "url(#arrow)");
      path.dataset.from = from;
      path.dataset.to = to;
      lines.append(path);
    }
  };

  // The lines of the card under the pointer, or with the focus, stand out.
  const mark = (event) => {
    const card = event.target.closest("[data-thing]");
    const id = card && ["pointerover", "focusin"].includes(event.type) ? card.dataset.thing : null;
    for (const path of lines.children) {
      path.classList.toggle("marked", id !== null && (path.dataset.from === id || path.dataset.to === id));
    }
  };
  for (const kind of ["pointerover", "pointerout", "focusin", "focusout"]) lineage.addEventListener(kind, mark);
  addEventListener("resize", draw);
  draw();
}

// Choosing a box lights up all that it came from and reached in this picture, and tells its facts.
const { boxes, arrows } = JSON.parse(document.getElementById("lineage").textContent);
const picture = document.querySelector("svg.lineage");
const details = document.getElementById("details");
const inputs = boxes.map(() => []);
const uses = boxes.map(() => []);
for (const [source, target, name] of arrows) {
  inputs[target].push([source, name]);
  uses[source].push([target, name]);
}

function closure(start, next) {
  const found = new Set([start]);
  const waiting = [start];
  while (waiting.length) {
    for (const [other] of next[waiting.pop()]) {
      if (!found.has(other)) {
        found.add(other);
        waiting.push(other);
      }
    }
  }
  return found;
}

function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function list(title, links) {
  if (!links.length) return;
  element("h3", title, details);
  const items = element("ul", undefined, details);
  for (const [other, name] of links) {
    const link = element("a", `${boxes[other].stage}, ${boxes[other].row}`, element("li", undefined, items));
    link.href = `#box-${other}`;
    link.after(` (${name})`);
  }
}

function choose(number) {
  const above = closure(number, inputs);
  const below = closure(number, uses);
  picture.classList.add("looking");
  picture.querySelectorAll(".lit").forEach((lit) => lit.classList.remove("lit"));
  for (const lit of [...above, ...below]) document.getElementById(`box-${lit}`).classList.add("lit");
  picture.querySelectorAll("path[data-source]").forEach((path) => {
    const source = Number(path.dataset.source);
    const target = Number(path.dataset.target);
    const shown = (above.has(source) && above.has(target)) || (below.has(source) && below.has(target));
    path.classList.toggle("lit", shown);
  });
  details.replaceChildren();
  element("h2", `${boxes[number].stage}, ${boxes[number].row}`, details);
  if (boxes[number].shared.length) element("p", `Shared with ${boxes[number].shared.join(", ")}.`, details);
  const facts = element("dl", undefined, details);
  for (const [name, value] of boxes[number].facts) {
    element("dt", name, facts);
    element("dd", value, facts);
  }
  list("Made from", inputs[number]);
  list("Made with it", uses[number]);
}

function clear() {
  picture.classList.remove("looking");
  details.replaceChildren(element("p", "Choose a box to see what it is, what it was made from and what was made with it."));
}

function follow() {
  const found = /^#box-(\d+)$/.exec(location.hash);
  if (found && boxes[Number(found[1])]) choose(Number(found[1]));
  else clear();
}

picture.addEventListener("click", (event) => {
  const box = event.target.closest(".box");
  if (box) location.hash = box.id;
  else {
    history.replaceState(null, "", location.pathname + location.search);
    clear();
  }
});
picture.addEventListener("keydown", (event) => {
  const box = event.target.closest(".box");
  if (box && event.key === "Enter") location.hash = box.id;
});
window.addEventListener("hashchange", follow);
follow();

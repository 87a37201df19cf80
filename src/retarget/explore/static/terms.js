// How the iterative correction made the targets of the newest sample's block.

import { MARGIN, element, ticks } from "./axes.js";
import { short } from "./controls.js";

const get = (id) => document.getElementById(id);
const LABEL = 48; // pixels that a factor needs under its bars

export function showTerms({ shown, picture, answered: state }, left) {
  const { terms } = picture, plain = state.momentum === 0;
  const iterative = (shown.curve.iterative || shown.targets.iterative) && "iterative" in picture.targets;
  get("terms").hidden = !iterative || !state.seen;
  if (get("terms").hidden) return;
  get("moves").style.display = terms ? "" : "none";
  get("terms-key").hidden = !terms;
  if (!terms) {
    get("terms-title").textContent = "How the iterative correction moves targets";
    get("terms-text").textContent = plain ? "" : "Its two terms are those of plain SGD: set the momentum to 0 to see them.";
    return;
  }
  const first = terms.first + 1, last = terms.first + terms.modulation.length;
  const whose = first === last ? `the target of sample ${first}` : `the targets of samples ${first} to ${last}`;
  get("terms-title").textContent = `How the iterative correction moved ${whose}`;
  const least = short(Math.min(...terms.modulation)), most = short(Math.max(...terms.modulation));
  get("terms-text").textContent = "Each sample's own error counts " +
    (least === most ? `${least} times` : `${least} to ${most} times`) +
    " (the diagonal of I + C\u2092\u2099): a learning rate of its own.";
  drawMoves(get("moves"), terms, left);
}

function drawMoves(svg, { first, modulation, online, offline }, left) {
  const width = Math.max(svg.clientWidth, 200), height = 130, { right } = MARGIN, count = online.length;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  const largest = Math.max(...online.map(Math.abs), ...offline.map(Math.abs), 1e-12);
  const room = (width - left - right) / count, bar = Math.max(1, Math.min(24, room * 0.32));
  const middle = (height - 18) / 2;
  const y = (value) => (middle - (value / largest) * (middle - 8)).toFixed(2);
  const x = (i, side) => (left + (i + 0.5) * room + (side * bar) / 2).toFixed(2);
  for (const [name, moves, side] of [["online", online, -1], ["offline", offline, 1]]) {
    const d = moves.map((move, i) => `M${x(i, side)} ${y(0)}V${y(move)}`).join("");
    element("path", { d, class: `bar ${name}`, "stroke-width": bar.toFixed(2) }, svg);
  }
  element("path", { d: `M${left} ${y(0)}H${width - right}`, class: "zero" }, svg);
  online.forEach((move, i) => {
    element("circle", { cx: x(i, 0), cy: y(move + offline[i]), r: Math.min(3.5, room / 2).toFixed(2), class: "dot" }, svg);
    if (room >= LABEL)
      element("text", { x: x(i, 0), y: height - 2, "text-anchor": "middle" }, svg).textContent = `\u00d7 ${short(modulation[i])}`;
  });
  if (room < LABEL) {
    element("text", { x: left, y: height - 2 }, svg).textContent = `sample ${first + 1}`;
    element("text", { x: width - right, y: height - 2, "text-anchor": "end" }, svg).textContent = `sample ${first + count}`;
  }
  for (const [value, label] of ticks(-largest, largest, 4))
    element("text", { x: left - 6, y: +y(value) + 4, "text-anchor": "end" }, svg).textContent = label;
}

// The lower pictures: bars of shifts, and of how the iterative correction moved the newest block's targets.

import { MARGIN, element, ticks } from "./axes.js";
import { short } from "./controls.js";

const get = (id) => document.getElementById(id);
const LABEL = 48; // pixels that a factor needs under its bars

// An empty picture: where values up to the largest one lie, with their labels and a line at zero.
function frame(svg, height, middle, largest, left, labelled) {
  const width = Math.max(svg.clientWidth, 200), right = width - MARGIN.right;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  const y = (value) => (middle - (value / largest) * (middle - 8)).toFixed(2);
  const text = (content, x, at, anchor = "start") => {
    element("text", { x, y: at, "text-anchor": anchor }, svg).textContent = content;
  };
  const bars = (d, name, stroke) => d && element("path", { d, class: `bar ${name}`, "stroke-width": stroke.toFixed(2) }, svg);
  const finish = () => {
    element("path", { d: `M${left} ${y(0)}H${right}`, class: "zero" }, svg);
    for (const [value, label] of labelled ? ticks(-largest, largest, 4) : []) text(label, left - 6, +y(value) + 4, "end");
  };
  return { right, y, text, bars, finish };
}

// Bars of effective minus true target, in stream order.
export function drawShifts({ state, picture }, left) {
  const effective = picture.targets.effective || [], height = 110;
  const shifts = effective.map((value, t) => value - state.y[picture.stream[t]]);
  const largest = Math.max(...shifts.map(Math.abs), 1e-12);
  const { right, y, text, bars, finish } = frame(get("shifts"), height, height / 2 - 6, largest, left, shifts.length);
  const room = (right - left) / state.x.length, stroke = Math.max(1, room * 0.65);
  const drawn = shifts.map((shift, t) => `M${(left + (t + 0.5) * room).toFixed(2)} ${y(0)}V${y(shift)}`);
  const last = drawn.pop();
  bars(drawn.join(""), "online", stroke);
  bars(last, "newest", stroke);
  finish();
  text("first", left, height - 2);
  text(`sample ${state.x.length}`, right, height - 2, "end");
}

export function showTerms({ shown, picture, answered: state }, left) {
  const { terms } = picture;
  const iterative = (shown.curve.iterative || shown.targets.iterative) && "iterative" in picture.targets;
  get("terms").hidden = !iterative || !state.seen;
  if (get("terms").hidden) return;
  get("moves").style.display = terms ? "" : "none";
  get("terms-key").hidden = !terms;
  if (!terms) {
    get("terms-title").textContent = "How the iterative correction moves targets";
    get("terms-text").textContent = state.momentum === 0 ? "" : "Its two terms are those of plain SGD: set the momentum to 0 to see them.";
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
  const height = 130, count = online.length;
  const largest = Math.max(...online.map(Math.abs), ...offline.map(Math.abs), 1e-12);
  const { right, y, text, bars, finish } = frame(svg, height, (height - 18) / 2, largest, left, true);
  const room = (right - left) / count, bar = Math.max(1, Math.min(24, room * 0.32));
  const x = (i, side) => (left + (i + 0.5) * room + (side * bar) / 2).toFixed(2);
  for (const [name, moves, side] of [["online", online, -1], ["offline", offline, 1]])
    bars(moves.map((move, i) => `M${x(i, side)} ${y(0)}V${y(move)}`).join(""), name, bar);
  finish();
  online.forEach((move, i) => {
    element("circle", { cx: x(i, 0), cy: y(move + offline[i]), r: Math.min(3.5, room / 2).toFixed(2), class: "dot" }, svg);
    if (room >= LABEL) text(`\u00d7 ${short(modulation[i])}`, x(i, 0), height - 2, "middle");
  });
  if (room < LABEL) {
    text(`sample ${first + 1}`, left, height - 2);
    text(`sample ${first + count}`, right, height - 2, "end");
  }
}

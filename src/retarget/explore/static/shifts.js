// The lower picture.

import { MARGIN, element, ticks } from "./axes.js";

// Bars of effective minus true target, in stream order.
export function drawShifts(svg, { state, picture }, left) {
  const width = Math.max(svg.clientWidth, 200), height = 110, { right } = MARGIN;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.replaceChildren();
  const effective = picture.targets.effective || [];
  const shifts = effective.map((value, t) => value - state.y[picture.stream[t]]);
  const largest = Math.max(...shifts.map(Math.abs), 1e-12);
  const room = (width - left - right) / state.x.length;
  const y = (value) => (height / 2 - 6 - (value / largest) * (height / 2 - 14)).toFixed(2);
  const bars = shifts.map((shift, t) => `M${(left + (t + 0.5) * room).toFixed(2)} ${y(0)}V${y(shift)}`);
  const last = bars.pop();
  const stroke = { "stroke-width": Math.max(1, room * 0.65).toFixed(2) };
  if (bars.length) element("path", { d: bars.join(""), class: "bar online", ...stroke }, svg);
  if (last) element("path", { d: last, class: "bar newest", ...stroke }, svg);
  element("path", { d: `M${left} ${y(0)}H${width - right}`, class: "zero" }, svg);
  for (const [value, label] of shifts.length ? ticks(-largest, largest, 4) : [])
    element("text", { x: left - 6, y: +y(value) + 4, "text-anchor": "end" }, svg).textContent = label;
  element("text", { x: left, y: height - 2 }, svg).textContent = "first";
  element("text", { x: width - right, y: height - 2, "text-anchor": "end" }, svg).textContent =
    `sample ${state.x.length}`;
}

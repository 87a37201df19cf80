// The picture of points, curves and targets, in SVG. It knows nothing of servers.

import { LETTER, MARGIN, element, ticks, widest } from "./axes.js";

const CURVES = ["offline", "online", "corrected", "iterative"];

const MARKS = {
  online: (x, y) => `M${x - 4} ${y - 4}l8 8m0 -8l-8 8`,
  corrected: (x, y) => `M${x - 4.5} ${y}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0`,
  iterative: (x, y) => `M${x} ${y - 5.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z`,
};

// A short piece of a learner's curve, or one of its marks: for the legend.
export function sample(kind, learner) {
  const svg = element("svg", { viewBox: "0 0 30 16", "aria-hidden": "true" });
  if (kind === "curve") element("path", { d: "M1 8H29", class: `curve ${learner}` }, svg);
  else if (learner === "offline") element("circle", { cx: 15, cy: 8, r: 5, class: "point" }, svg);
  else element("path", { d: MARKS[learner](15, 8), class: `mark ${learner}` }, svg);
  return svg;
}

export class Plot {
  constructor(svg) {
    this.svg = svg;
    const clip = element("clipPath", { id: "inside" }, element("defs", {}, svg));
    this.clip = element("rect", {}, clip);
    this.axes = element("g", {}, svg);
    const inside = element("g", { "clip-path": "url(#inside)" }, svg);
    this.paths = {};
    const names = ["move", "curve", "mark"].flatMap((kind) => CURVES.map((name) => `${kind} ${name}`));
    for (const name of ["move newest", ...names]) this.paths[name] = element("path", { class: name }, inside);
    this.dots = element("g", {}, inside);
    this.ring = element("circle", { class: "ring", r: 10 }, inside);
    this.chosen = element("circle", { class: "chosen", r: 8 }, inside);
    this.hits = element("g", {}, svg);
    this.beyond = element("text", { "text-anchor": "end", id: "beyond" }, svg);
    this.range = null;
  }

  // What is drawn has `state`, `picture`, `shown` (names of curves and targets) and `chosen`.
  draw(view, frozen) {
    this.fit(view, frozen);
    this.drawAxes(view);
    const { state, picture, shown } = view;
    const line = (name) => {
      const curve = shown.curve[name] && picture.curves[name];
      return curve ? "M" + curve.map((v, i) => this.at(picture.grid[i], v)).join("L") : "";
    };
    for (const name of CURVES) this.paths[`curve ${name}`].setAttribute("d", line(name));
    this.drawTargets(view);
    this.drawPoints(state, picture, view.chosen);
  }

  drawTargets({ state, picture, shown }) {
    let above = 0, below = 0;
    for (const name of CURVES.slice(1)) {
      const targets = shown.targets[name] && picture.targets[name === "online" ? "effective" : name];
      let marks = "", moves = "";
      for (const [t, value] of (targets || []).slice(0, state.seen).entries()) {
        const point = picture.stream[t], x = state.x[point];
        marks += MARKS[name](+this.x(x), +this.y(value));
        moves += `M${this.at(x, state.y[point])}L${this.at(x, value)}`;
        above += value > this.range[1];
        below += value < this.range[0];
      }
      this.paths[`mark ${name}`].setAttribute("d", marks);
      this.paths[`move ${name}`].setAttribute("d", moves);
    }
    let moves = "";
    const { before, effective } = picture.targets;
    if (shown.targets.online && before && effective)
      for (const [t, value] of before.entries()) {
        const x = state.x[picture.stream[t]];
        moves += `M${this.at(x, value)}L${this.at(x, effective[t])}`;
      }
    this.paths["move newest"].setAttribute("d", moves);
    const parts = [above && `${above} above`, below && `${below} below`].filter(Boolean);
    this.beyond.textContent = parts.length ? `targets beyond the picture: ${parts.join(", ")}` : "";
  }

  drawPoints(state, picture, chosen) {
    const n = state.x.length, reach = n > 100 ? 9 : 15;
    while (this.dots.childElementCount > n) {
      this.dots.lastChild.remove();
      this.hits.lastChild.remove();
    }
    while (this.dots.childElementCount < n) {
      element("circle", { class: "point" }, this.dots);
      element("circle", { class: "hit", role: "button", tabindex: -1 }, this.hits);
    }
    const position = new Array(n);
    picture.stream.forEach((point, t) => { position[point] = t; });
    for (let i = 0; i < n; i++) {
      const place = { cx: this.x(state.x[i]), cy: this.y(state.y[i]) };
      const dot = this.dots.children[i], hit = this.hits.children[i];
      const seen = position[i] < state.seen;
      for (const [key, value] of Object.entries({ ...place, r: n > 100 ? 3.5 : 5 })) dot.setAttribute(key, value);
      dot.setAttribute("class", seen ? "point" : "point unseen");
      for (const [key, value] of Object.entries({ ...place, r: reach })) hit.setAttribute(key, value);
      hit.setAttribute("tabindex", i === chosen ? 0 : -1);
      hit.setAttribute("aria-label", `Point ${i + 1} of ${n}: ${state.x[i]}, ${state.y[i]}`);
    }
    const newest = state.seen > 0 ? picture.stream[state.seen - 1] : undefined;
    for (const [mark, point] of [[this.ring, newest], [this.chosen, chosen]]) {
      const there = point !== undefined && point < n;
      mark.setAttribute("visibility", there ? "visible" : "hidden");
      if (there) mark.setAttribute("cx", this.x(state.x[point]));
      if (there) mark.setAttribute("cy", this.y(state.y[point]));
    }
  }

  // The vertical range: all that is shown, but never so much that the points become a line. It
  // follows slowly, so that the picture does not jump at every step.
  fit({ state, picture, shown }, frozen) {
    this.width = Math.max(this.svg.clientWidth, 200);
    // not so high that the table of learners below it is out of sight
    this.height = Math.max(270, Math.min(500, this.width * 0.6, innerHeight * 0.45));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.setAttribute("height", this.height);
    this.domain = [state.low, state.high];
    if (!frozen || !this.range) this.range = this.wantedRange(state, picture, shown);
    this.left = Math.max(40, widest(ticks(...this.range, 6)) + 12);
  }

  wantedRange(state, picture, shown) {
    let low = Math.min(...state.y), high = Math.max(...state.y);
    const spread = high - low || Math.abs(high) || 1;
    const bounds = [low - 0.75 * spread, high + 0.75 * spread];
    for (const name of CURVES) {
      const targets = shown.targets[name] && picture.targets[name === "online" ? "effective" : name];
      const values = [...((shown.curve[name] && picture.curves[name]) || []), ...(targets || []).slice(0, state.seen)];
      for (const value of values) {
        low = Math.min(low, Math.max(value, bounds[0]));
        high = Math.max(high, Math.min(value, bounds[1]));
      }
    }
    const margin = 0.05 * (high - low || spread), old = this.range;
    const wanted = [low - margin, high + margin];
    const shrunk = old && wanted[1] - wanted[0] < 0.6 * (old[1] - old[0]);
    return !old || shrunk ? wanted : [Math.min(old[0], wanted[0]), Math.max(old[1], wanted[1])];
  }

  drawAxes({ xName, yName }) {
    const { right, top, bottom } = MARGIN, { width, height, left } = this;
    const inner = { x: left, y: top, width: width - left - right, height: height - top - bottom };
    for (const [key, value] of Object.entries(inner)) this.clip.setAttribute(key, value);
    this.axes.replaceChildren();
    const each = widest(ticks(...this.domain, 4)) + 3 * LETTER;
    for (const [value, label] of ticks(...this.domain, Math.max(1, Math.min(8, inner.width / each)))) {
      const x = this.x(value);
      element("path", { d: `M${x} ${top}V${height - bottom}`, class: "frame" }, this.axes);
      const inSight = Math.min(x, width - (label.length * LETTER) / 2);
      const place = { x: inSight, y: height - bottom + 17, "text-anchor": "middle" };
      const text = element("text", { ...place, class: "x-tick", "data-at": x }, this.axes);
      text.textContent = label;
    }
    for (const [value, label] of ticks(...this.range, 6)) {
      const y = this.y(value);
      element("path", { d: `M${left} ${y}H${width - right}`, class: "frame" }, this.axes);
      const text = element("text", { x: left - 6, y: +y + 4, "text-anchor": "end", class: "y-tick", "data-at": y }, this.axes);
      text.textContent = label;
    }
    element("text", { x: left + 6, y: top + 14 }, this.axes).textContent = shortened(yName, inner.width);
    element("text", { x: width - right - 4, y: height - bottom - 6, "text-anchor": "end" }, this.axes)
      .textContent = shortened(xName, inner.width);
    this.beyond.setAttribute("x", width - right - 4);
    this.beyond.setAttribute("y", top + 14);
  }

  x(value) {
    const [low, high] = this.domain, span = this.width - this.left - MARGIN.right;
    return (this.left + ((value - low) / (high - low)) * span).toFixed(2);
  }

  y(value) {
    const [low, high] = this.range, span = this.height - MARGIN.top - MARGIN.bottom;
    const place = MARGIN.top + ((high - value) / (high - low)) * span;
    return Math.max(-1e4, Math.min(1e4, place)).toFixed(2);
  }

  at(x, y) {
    return `${this.x(x)} ${this.y(y)}`;
  }

  // The data coordinates of a place on the screen, inside the picture.
  where(event) {
    const box = this.svg.getBoundingClientRect();
    const across = (event.clientX - box.left - this.left) / (this.width - this.left - MARGIN.right);
    const down = (event.clientY - box.top - MARGIN.top) / (this.height - MARGIN.top - MARGIN.bottom);
    const share = (value) => Math.max(0, Math.min(1, value));
    const [left, right] = this.domain, [low, high] = this.range;
    return [left + share(across) * (right - left), high - share(down) * (high - low)];
  }
}

function shortened(name, width) {
  const most = Math.max(4, Math.floor(width / (1.2 * LETTER)));
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}

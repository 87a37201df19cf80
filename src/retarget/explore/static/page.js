// The page: one setting, what the server made of it, and every way to change it.

import { Controls, short } from "./controls.js";
import { Plot, drawShifts, sample } from "./plot.js";

const LEARNERS = {
  offline: { name: "offline", targets: "true" },
  online: { name: "online", targets: "effective" },
  corrected: { name: "corrected, exactly", targets: "corrected" },
  iterative: { name: "corrected, iteratively", targets: "corrected" },
};
const MOST_POINTS = 500;
const get = (id) => document.getElementById(id);
const view = {
  // the setting; the last one that was answered, and the answer
  state: null, answered: null, picture: null, chosen: 0, xName: "x", yName: "y",
  shown: {
    curve: { offline: true, online: true, corrected: true, iterative: false },
    targets: { offline: true, online: true, corrected: false, iterative: false },
  },
};
const plot = new Plot(get("plot"));
const controls = new Controls(change);
let opening, dragged = null, playing = null, busy = false, again = false;

// Every change of the setting comes through here.
function change(what) {
  const { state } = view, n = state.x.length;
  const atEnd = state.seen === n;
  Object.assign(state, what);
  const count = state.x.length;
  state.seen = atEnd && what.seen === undefined ? count : Math.min(state.seen, count);
  const batch = state.batch_size; // a block is made of whole mini-batches
  if (state.block_size % batch) {
    const batches = Math.min(Math.round(state.block_size / batch), Math.floor(MOST_POINTS / batch));
    state.block_size = Math.max(1, batches) * batch;
  }
  view.chosen = Math.min(view.chosen, count - 1);
  showSetting();
  compute();
}

// One question at a time, and then the newest: a drag never queues up.
async function compute() {
  if (busy) { again = true; return; }
  busy = true;
  get("picture").setAttribute("aria-busy", "true");
  do {
    again = false;
    const asked = structuredClone(view.state);
    try {
      const reply = await fetch("compute", {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked),
      });
      const answer = await reply.json();
      if (!reply.ok) { showNotice([`This setting cannot be computed: ${answer.error}.`]); continue; }
      Object.assign(view, { picture: answer, answered: asked });
      showPicture();
    } catch (error) {
      showNotice(["The server does not answer. Start it again with: retarget explore"]);
    }
  } while (again);
  busy = false;
  get("picture").setAttribute("aria-busy", "false");
}

function showPicture() {
  const { picture, answered: state } = view, atRate = picture.largest_lr;
  plot.draw({ ...view, state }, dragged !== null);
  drawShifts(get("shifts"), { state, picture }, plot.left);
  showProblems(state, picture);
  for (const name of ["online", "corrected", "iterative"])
    get(`distance-${name}`).textContent = name in picture.distances ? short(picture.distances[name], spread(state)) : "–";
  controls.show(view.state, atRate);
  get("code").textContent = picture.python;
  showStory(state);
  showFacts(state);
}

function showProblems(state, { problems, largest_lr: largest }) {
  const lines = [], names = { effective: "effective targets" };
  for (const [learner, { name }] of Object.entries(LEARNERS)) names[learner] = name;
  const unstable = state.lr > largest * (1 + 1e-9);
  if (unstable)
    lines.push(`At the rate ${short(state.lr)} a step overshoots: it makes the error on its own mini-batch larger. ` +
      `Every step is stable up to the rate ${short(largest)}.`);
  for (const text of new Set(Object.values(problems))) {
    const whose = Object.keys(problems).filter((name) => problems[name] === text).map((name) => names[name]);
    lines.push(`Not drawn, or not to be trusted (${whose.join("; ")}): ${text}.`);
  }
  showNotice(lines, unstable ? Number((largest / 2).toPrecision(2)) : null);
}

function showNotice(lines, rate = null) {
  const notice = get("notice");
  notice.hidden = !lines.length;
  notice.textContent = lines.join(" ");
  if (rate === null) return;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = `Use ${rate}`;
  button.addEventListener("click", () => change({ lr: rate }));
  notice.append(button);
}

const spread = (state) => Math.max(...state.y) - Math.min(...state.y) || 1;

// A target, to a thousandth of the range of all.
function level(value, state) {
  const decimals = Math.max(0, Math.min(15, 3 - Math.floor(Math.log10(spread(state)))));
  return Math.abs(value) < 1e9 ? String(Number(value.toFixed(decimals))).replace("-", "\u2212") : short(value);
}

// What the newest sample did, in words.
function showStory(state) {
  const { stream, targets, predicted } = view.picture, t = state.seen;
  if (t === 0) { get("story").textContent = "Nothing has been learned yet. Press Play, or step on."; return; }
  const { effective, before } = targets, y = state.y[stream[t - 1]];
  if (!effective || !predicted) { get("story").textContent = `Sample ${t} of the stream has been learned.`; return; }
  const mean = effective.reduce((sum, value, i) => sum + Math.abs(value - state.y[stream[i]]), 0) / t;
  const moved = (before || []).reduce((most, value, i) => Math.max(most, Math.abs(effective[i] - value)), 0);
  get("story").textContent =
    `Sample ${t} came with the target ${level(y, state)}; the online learner had predicted ${level(predicted[t - 1], state)}. ` +
    (t > 1 ? `Learning it moved the effective targets of earlier samples by up to ${short(moved, spread(state))}. ` : "") +
    `All in all, targets have shifted by ${short(mean, spread(state))} on average.`;
}

function showFacts(state) {
  const { stream, targets } = view.picture, t = stream.indexOf(view.chosen), facts = get("point-facts");
  const rows = [["place in the stream", t + 1]];
  const names = [["effective", "effective target"], ["corrected", "corrected, exactly"], ["iterative", "corrected, iteratively"]];
  for (const [key, name] of names) {
    const value = targets[key]?.[t];
    rows.push([name, value === undefined ? "–" : level(value, state)]);
  }
  facts.replaceChildren();
  for (const [name, value] of rows) {
    const term = document.createElement("dt"), detail = document.createElement("dd");
    term.textContent = name;
    detail.textContent = value;
    facts.append(term, detail);
  }
}

function showSetting() {
  const { state } = view, n = state.x.length;
  get("order").value = state.order;
  get("shuffle").hidden = state.order !== "random";
  get("seen").max = n;
  get("seen").value = state.seen;
  get("seen-text").textContent = `${state.seen} of ${n}`;
  get("point-number").textContent = `${view.chosen + 1} of ${n}`;
  get("point-x").value = state.x[view.chosen];
  get("point-y").value = state.y[view.chosen];
  get("remove").disabled = n < 2;
  get("add").disabled = n >= MOST_POINTS;
  controls.show(state, view.picture?.largest_lr);
}

// Points.
const rounded = (value, span) => Number(value.toFixed(Math.max(0, Math.min(12, 3 - Math.floor(Math.log10(span))))));

function place(x, y) {
  const [low, high] = plot.range;
  return [rounded(x, view.state.high - view.state.low), rounded(y, high - low)];
}

function movePoint(i, x, y) {
  const { state } = view;
  change({ x: state.x.with(i, x), y: state.y.with(i, y), low: Math.min(state.low, x), high: Math.max(state.high, x) });
}

function addPoint(x, y) {
  const { state } = view;
  if (state.x.length >= MOST_POINTS) return;
  view.chosen = state.x.length;
  change({ x: [...state.x, x], y: [...state.y, y] });
}

function removePoint(i) {
  const { state } = view;
  if (state.x.length < 2) return;
  change({ x: state.x.toSpliced(i, 1), y: state.y.toSpliced(i, 1) });
}

function choose(i) {
  view.chosen = (i + view.state.x.length) % view.state.x.length;
  change({});
}

// Of several points under the finger, the nearest.
function nearest(event) {
  let best = 0, least = Infinity;
  const box = get("plot").getBoundingClientRect();
  view.state.x.forEach((x, i) => {
    const away = Math.hypot(event.clientX - box.left - plot.x(x), event.clientY - box.top - plot.y(view.state.y[i]));
    if (away < least) [best, least] = [i, away];
  });
  return best;
}

get("plot").addEventListener("pointerdown", (event) => {
  if (!event.target.classList.contains("hit") || event.button !== 0 || !view.picture) return;
  dragged = nearest(event);
  view.chosen = dragged;
  get("plot").setPointerCapture(event.pointerId);
  get("plot").classList.add("dragging");
  plot.hits.children[dragged].focus({ preventScroll: true });
  event.preventDefault();
});
// A finger on a point drags it; anywhere else it scrolls. (touch-action is not heeded inside an SVG.)
get("plot").addEventListener("touchstart", (event) => {
  if (event.target.classList.contains("hit") && event.cancelable) event.preventDefault();
}, { passive: false });
get("plot").addEventListener("pointermove", (event) => {
  if (dragged !== null) movePoint(dragged, ...place(...plot.where(event)));
});
for (const end of ["pointerup", "pointercancel"])
  get("plot").addEventListener(end, () => {
    if (dragged === null) return;
    dragged = null;
    get("plot").classList.remove("dragging");
    change({});
  });
get("plot").addEventListener("dblclick", (event) => {
  if (!event.target.classList.contains("hit") && view.picture) addPoint(...place(...plot.where(event)));
});
get("plot").addEventListener("keydown", (event) => {
  const i = view.chosen, { state } = view, far = event.shiftKey ? 0.1 : 0.01;
  const across = far * (state.high - state.low), up = far * (plot.range[1] - plot.range[0]);
  const moves = { ArrowLeft: [-across, 0], ArrowRight: [across, 0], ArrowUp: [0, up], ArrowDown: [0, -up] };
  if (event.key in moves) {
    const [dx, dy] = moves[event.key];
    movePoint(i, ...place(Math.max(state.low, Math.min(state.high, state.x[i] + dx)), state.y[i] + dy));
  } else if (event.key === "PageUp" || event.key === "PageDown") choose(i + (event.key === "PageDown" ? 1 : -1));
  else if (event.key === "Delete" || event.key === "Backspace") removePoint(i);
  else return;
  event.preventDefault();
  plot.hits.children[view.chosen]?.focus({ preventScroll: true });
});
for (const id of ["point-x", "point-y"])
  get(id).addEventListener("change", () => {
    const [x, y] = [get("point-x"), get("point-y")].map((input) => (input.value === "" ? NaN : Number(input.value)));
    if (Number.isFinite(x) && Number.isFinite(y)) movePoint(view.chosen, x, y);
    else showSetting();
  });
get("add").addEventListener("click", () => {
  const { state } = view;
  addPoint(...place((state.low + state.high) / 2, (plot.range[0] + plot.range[1]) / 2));
});
get("remove").addEventListener("click", () => removePoint(view.chosen));
get("next-point").addEventListener("click", () => choose(view.chosen + 1));
get("previous-point").addEventListener("click", () => choose(view.chosen - 1));

// The stream, step by step.
function stop() {
  clearInterval(playing);
  playing = null;
  get("play").textContent = "Play";
}

function step(seen) {
  stop();
  change({ seen: Math.max(0, Math.min(view.state.x.length, seen)) });
}

get("play").addEventListener("click", () => {
  if (playing !== null) { stop(); return; }
  const n = view.state.x.length;
  if (view.state.seen === n) change({ seen: 0 });
  get("play").textContent = "Pause";
  playing = setInterval(() => {
    if (view.state.seen >= view.state.x.length) stop();
    else change({ seen: view.state.seen + 1 });
  }, Math.max(60, Math.min(450, 15000 / n)));
});
get("seen").addEventListener("input", () => step(Number(get("seen").value)));
get("first").addEventListener("click", () => step(0));
get("back").addEventListener("click", () => step(view.state.seen - 1));
get("forward").addEventListener("click", () => step(view.state.seen + 1));
get("last").addEventListener("click", () => step(Infinity));

// The rest.
get("order").addEventListener("change", () => change({ order: get("order").value }));
get("shuffle").addEventListener("click", () => change({ seed: view.state.seed + 1 }));
get("reset").addEventListener("click", () => {
  stop();
  plot.range = null;
  view.chosen = 0;
  change(structuredClone(opening.state));
});
get("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(get("code").textContent);
    get("copied").textContent = "Copied.";
  } catch (error) {
    get("python").open = true;
    getSelection().selectAllChildren(get("code"));
    get("copied").textContent = "The browser does not let this page copy: the code is chosen below, press Ctrl-C.";
  }
});
addEventListener("resize", () => view.picture && showPicture());

function makeLegend() {
  for (const [learner, { name, targets }] of Object.entries(LEARNERS)) {
    const row = get("legend").tBodies[0].insertRow();
    row.insertCell().textContent = name;
    for (const [kind, words] of [["curve", `curve, ${name}`], ["targets", targets]]) {
      const label = document.createElement("label"), box = document.createElement("input");
      box.type = "checkbox";
      box.id = `${kind}-${learner}`;
      box.checked = view.shown[kind][learner];
      box.disabled = kind === "targets" && learner === "offline"; // the points themselves
      if (kind === "curve") box.setAttribute("aria-label", words);
      box.addEventListener("change", () => {
        view.shown[kind][learner] = box.checked;
        if (view.picture) showPicture();
      });
      label.append(box, sample(kind, learner), ...(kind === "targets" ? [words] : []));
      row.insertCell().append(label);
    }
    const distance = row.insertCell();
    distance.className = "number";
    if (learner !== "offline") distance.id = `distance-${learner}`;
  }
}

makeLegend();
opening = await (await fetch("opening")).json();
Object.assign(view, { state: structuredClone(opening.state), xName: opening.x_name, yName: opening.y_name });
get("title").textContent = `${opening.title}.`;
get("x-name").textContent = opening.x_name;
get("y-name").textContent = opening.y_name;
change({});

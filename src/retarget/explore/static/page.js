// The page: one setting, what the server made of it, and every way to change it.

import { drawShifts, showTerms } from "./bars.js";
import { Controls } from "./controls.js";
import { Plot } from "./plot.js";
import { MOST_POINTS, Points } from "./points.js";
import { makeLegend, showNotice, showReadings } from "./readings.js";

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
const points = new Points(view, plot, change);
let opening, playing = null, busy = false, again = false;

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

// One request at a time, then the newest setting: a drag never queues up.
async function compute() {
  if (busy) { again = true; return; }
  busy = true;
  get("picture").setAttribute("aria-busy", "true");
  do {
    again = false;
    const asked = structuredClone(view.state);
    const [answer, problem] = await ask(asked);
    if (problem) showNotice([problem]);
    else {
      Object.assign(view, { picture: answer, answered: asked });
      showPicture();
    }
  } while (again);
  busy = false;
  get("picture").setAttribute("aria-busy", "false");
}

// The picture of a setting, or why there is none.
async function ask(setting) {
  const headers = { "Content-Type": "application/json" };
  try {
    const reply = await fetch("compute", { method: "POST", headers, body: JSON.stringify(setting) });
    const answer = await reply.json();
    return reply.ok ? [answer, null] : [null, `This setting cannot be computed: ${answer.error}.`];
  } catch (error) {
    return [null, "The server does not answer. Start it again with: retarget explore"];
  }
}

function showPicture() {
  const { picture, answered: state } = view;
  plot.draw({ ...view, state }, points.dragged !== null);
  drawShifts({ state, picture }, plot.left);
  showTerms(view, plot.left);
  showReadings(view, change);
  controls.show(view.state, picture.largest_lr);
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
    get("copied").textContent = "The browser does not let this page copy: the code is selected below, press Ctrl-C.";
  }
});
addEventListener("resize", () => view.picture && showPicture());

makeLegend(view, () => view.picture && showPicture());
opening = await (await fetch("opening")).json();
Object.assign(view, { state: structuredClone(opening.state), xName: opening.x_name, yName: opening.y_name });
get("title").textContent = `${opening.title}.`;
get("x-name").textContent = opening.x_name;
get("y-name").textContent = opening.y_name;
change({});

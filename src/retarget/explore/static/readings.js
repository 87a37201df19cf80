// What the page says in words and numbers.

import { MINUS } from "./axes.js";
import { short } from "./controls.js";
import { sample } from "./plot.js";

const LEARNERS = {
  offline: { name: "offline", targets: "true" },
  online: { name: "online", targets: "effective" },
  corrected: { name: "corrected, exactly", targets: "corrected" },
  iterative: { name: "corrected, iteratively", targets: "corrected" },
};
const get = (id) => document.getElementById(id);

const spread = (state) => Math.max(...state.y) - Math.min(...state.y) || 1;

// A target, to a thousandth of the range of all.
function level(value, state) {
  const decimals = Math.max(0, Math.min(15, 3 - Math.floor(Math.log10(spread(state)))));
  return Math.abs(value) < 1e9 ? String(Number(value.toFixed(decimals))).replace("-", MINUS) : short(value);
}

// Shows all of it, from the last answer.
export function showReadings(view, change) {
  const { picture, answered: state } = view;
  showProblems(state, picture, change);
  for (const name of ["online", "corrected", "iterative"])
    for (const [id, values] of [["distance", picture.distances], ["discrepancy", picture.discrepancies]])
      get(`${id}-${name}`).textContent = name in values ? short(values[name], spread(state)) : "–";
  get("code").textContent = picture.python;
  showStory(state, picture);
  showFacts(state, picture, view.chosen);
}

function showProblems(state, { problems, largest_lr: largest }, change) {
  const lines = [], names = { effective: "effective targets" };
  for (const [learner, { name }] of Object.entries(LEARNERS)) names[learner] = name;
  const unstable = state.lr > largest * (1 + 1e-9);
  if (unstable)
    lines.push(`At the rate ${short(state.lr)} a step overshoots: it makes the error on its own mini-batch larger. ` +
      `Every step is stable up to the rate ${short(largest)}.`);
  for (const text of new Set(Object.values(problems))) {
    const whose = Object.keys(problems).filter((name) => problems[name] === text).map((name) => names[name]);
    lines.push(`Not drawn, or unreliable (${whose.join("; ")}): ${text}.`);
  }
  showNotice(lines);
  if (!unstable) return;
  const button = document.createElement("button"), rate = Number((largest / 2).toPrecision(2));
  button.type = "button";
  button.textContent = `Use ${rate}`;
  button.addEventListener("click", () => change({ lr: rate }));
  get("notice").append(button);
}

export function showNotice(lines) {
  get("notice").hidden = !lines.length;
  get("notice").textContent = lines.join(" ");
}

// What the newest sample did, in words.
function showStory(state, { stream, targets, predicted }) {
  const t = state.seen;
  if (t === 0) { get("story").textContent = "Nothing has been learned yet. Press Play, or step forward."; return; }
  const { effective, before } = targets, y = state.y[stream[t - 1]];
  if (!effective || !predicted) { get("story").textContent = `Sample ${t} of the stream has been learned.`; return; }
  const mean = effective.reduce((sum, value, i) => sum + Math.abs(value - state.y[stream[i]]), 0) / t;
  const moved = (before || []).reduce((most, value, i) => Math.max(most, Math.abs(effective[i] - value)), 0);
  get("story").textContent =
    `Sample ${t} came with the target ${level(y, state)}; the online learner had predicted ${level(predicted[t - 1], state)}. ` +
    (t > 1 ? `Learning it moved the effective targets of earlier samples by up to ${short(moved, spread(state))}. ` : "") +
    `Overall, targets have shifted by ${short(mean, spread(state))} on average.`;
}

function showFacts(state, { stream, targets }, chosen) {
  const t = stream.indexOf(chosen), facts = get("point-facts");
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

// Rows with a switch for each curve and for its targets.
export function makeLegend(view, redraw) {
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
        redraw();
      });
      label.append(box, sample(kind, learner), ...(kind === "targets" ? [words] : []));
      row.insertCell().append(label);
    }
    for (const id of ["distance", "discrepancy"]) {
      const cell = row.insertCell();
      cell.className = "number";
      if (learner !== "offline") cell.id = `${id}-${learner}`;
    }
  }
}

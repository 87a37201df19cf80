// The sliders, each with a number field, which also accepts values beyond the slider.

const LISTS = {
  online: [
    { name: "lr", label: "rate", log: true, min: 0.01, max: 4, limits: [1e-12, 1e12] },
    { name: "batch_size", label: "mini-batch", whole: true, min: 1, max: 32, limits: [1, 500] },
    { name: "momentum", label: "momentum", min: 0, max: 0.95, step: 0.01, limits: [0, 0.999] },
    { name: "start", label: "starts at", plain: true, limits: [-1e12, 1e12] },
  ],
  offline: [
    { name: "gamma", label: "ridge", log: true, min: 0.001, max: 100, limits: [1e-12, 1e12] },
    { name: "width", label: "kernel width", log: true, min: 0.01, max: 3, ofRange: true, limits: [1e-12, 1e12] },
  ],
  iterative: [
    { name: "block_size", label: "block", whole: true, min: 1, max: 64, limits: [1, 500] },
    { name: "block_ridge", label: "block ridge", log: true, min: 0.0001, max: 10, limits: [0, 1e12] },
  ],
};

// Three digits without trailing zeros; 0 if it is only a rounding error of its unit.
export function short(value, unit = 0) {
  const size = Math.abs(value);
  if (size <= 1e-9 * unit) return "0";
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  return text.replace("-", "\u2212");
}

export class Controls {
  constructor(change) {
    this.change = change;
    this.rows = [];
    for (const [place, list] of Object.entries(LISTS)) {
      const parent = document.querySelector(`[data-controls="${place}"]`);
      for (const control of list) this.rows.push(this.make(control, parent));
    }
    this.stable = document.createElement("p");
    this.stable.className = "hint";
    this.stable.id = "stable";
    document.getElementById("lr-number").closest(".row").after(this.stable);
  }

  make(control, parent) {
    const row = document.createElement("div"), name = document.createElement("label");
    const slider = document.createElement("input"), number = document.createElement("input");
    row.className = "row";
    name.textContent = control.label;
    name.htmlFor = number.id = `${control.name}-number`;
    slider.id = control.name;
    number.type = "number";
    number.step = control.whole ? 1 : "any";
    number.className = "short";
    slider.type = "range";
    Object.assign(slider, control.log ? { min: 0, max: 1, step: 0.005 } : control.whole
      ? { min: control.min, max: control.max, step: 1 } : { min: control.min, max: control.max, step: control.step });
    slider.setAttribute("aria-label", control.label);
    row.append(name, ...(control.plain ? [] : [slider]), number);
    parent.append(row);
    slider.addEventListener("input", () => this.change({ [control.name]: this.value(control, slider) }));
    number.addEventListener("change", () => {
      const [low, high] = control.limits, value = Math.max(low, Math.min(high, Number(number.value)));
      const wrong = number.value === "" || !Number.isFinite(value) || (control.whole && value % 1);
      this.change(wrong ? {} : { [control.name]: value }); // changes nothing: shows the old value again
    });
    return { control, slider, number };
  }

  scale({ min, max, ofRange }) {
    const unit = ofRange ? this.unit : 1;
    return [min * unit, max * unit];
  }

  value(control, slider) {
    const place = Number(slider.value);
    if (!control.log) return place;
    const [min, max] = this.scale(control);
    return Number((min * (max / min) ** place).toPrecision(3));
  }

  show(state, largestRate) {
    this.unit = state.high - state.low;
    for (const { control, slider, number } of this.rows) {
      const value = state[control.name], [min, max] = this.scale(control);
      if (control.whole) slider.max = Math.min(control.max, Math.max(2, state.x.length));
      // leaves the slider that is being dragged alone: rounding must not push it back
      if (document.activeElement !== slider)
        slider.value = control.log ? Math.log(Math.max(value, min) / min) / Math.log(max / min) : value;
      slider.setAttribute("aria-valuetext", short(value));
      number.value = Number(value.toPrecision(4));
    }
    this.stable.textContent = largestRate ? `stable up to ${short(largestRate)}` : "";
  }
}

// Points are dragged, typed, added and removed: by mouse, finger and keyboard.

export const MOST_POINTS = 500;

const get = (id) => document.getElementById(id);
const isPoint = (event) => event.target.classList.contains("hit");
const rounded = (value, span) => Number(value.toFixed(Math.max(0, Math.min(15, 3 - Math.floor(Math.log10(span))))));

export class Points {
  constructor(view, plot, change) {
    Object.assign(this, { view, plot, change, dragged: null });
    this.listenToPointer(plot.svg);
    plot.svg.addEventListener("keydown", (event) => this.key(event));
    for (const id of ["point-x", "point-y"]) get(id).addEventListener("change", () => this.type());
    get("add").addEventListener("click", () => {
      const { low, high } = view.state, [bottom, top] = plot.range;
      this.add((low + high) / 2, (bottom + top) / 2);
    });
    get("remove").addEventListener("click", () => this.remove(view.chosen));
    get("next-point").addEventListener("click", () => this.choose(view.chosen + 1));
    get("previous-point").addEventListener("click", () => this.choose(view.chosen - 1));
  }

  listenToPointer(svg) {
    svg.addEventListener("pointerdown", (event) => {
      if (!isPoint(event) || event.button !== 0) return;
      this.dragged = this.view.chosen = this.nearest(event);
      svg.setPointerCapture(event.pointerId);
      svg.classList.add("dragging");
      this.focus();
      event.preventDefault();
    });
    // A finger on a point drags it; anywhere else it scrolls. (touch-action is not heeded inside an SVG.)
    svg.addEventListener("touchstart", (event) => {
      if (isPoint(event) && event.cancelable) event.preventDefault();
    }, { passive: false });
    svg.addEventListener("pointermove", (event) => {
      if (this.dragged !== null) this.move(this.dragged, ...this.place(...this.plot.where(event)));
    });
    for (const end of ["pointerup", "pointercancel"])
      svg.addEventListener(end, () => {
        if (this.dragged === null) return;
        this.dragged = null;
        svg.classList.remove("dragging");
        this.change({}); // the axes may follow now
      });
    svg.addEventListener("dblclick", (event) => {
      if (!isPoint(event) && this.plot.range) this.add(...this.plot.where(event));
    });
  }

  key(event) {
    const { view: { state, chosen: i }, plot: { range } } = this, far = event.shiftKey ? 0.1 : 0.01;
    const across = far * (state.high - state.low), up = far * (range[1] - range[0]);
    const moves = { ArrowLeft: [-across, 0], ArrowRight: [across, 0], ArrowUp: [0, up], ArrowDown: [0, -up] };
    if (event.key in moves) {
      const [dx, dy] = moves[event.key];
      this.move(i, ...this.place(Math.max(state.low, Math.min(state.high, state.x[i] + dx)), state.y[i] + dy));
    } else if (event.key === "PageUp") this.choose(i - 1);
    else if (event.key === "PageDown") this.choose(i + 1);
    else if (event.key === "Delete" || event.key === "Backspace") this.remove(i);
    else return;
    event.preventDefault();
    this.focus();
  }

  type() {
    const [x, y] = [get("point-x"), get("point-y")].map((input) => (input.value === "" ? NaN : Number(input.value)));
    if (Number.isFinite(x) && Number.isFinite(y)) this.move(this.view.chosen, x, y);
    else this.change({}); // shows the old numbers again
  }

  move(i, x, y) {
    const { state } = this.view, low = Math.min(state.low, x), high = Math.max(state.high, x);
    this.change({ x: state.x.with(i, x), y: state.y.with(i, y), low, high });
  }

  add(x, y) {
    const { state } = this.view, [atX, atY] = this.place(x, y);
    if (state.x.length >= MOST_POINTS) return;
    this.view.chosen = state.x.length;
    this.change({ x: [...state.x, atX], y: [...state.y, atY] });
  }

  remove(i) {
    const { state } = this.view;
    if (state.x.length > 1) this.change({ x: state.x.toSpliced(i, 1), y: state.y.toSpliced(i, 1) });
  }

  choose(i) {
    const n = this.view.state.x.length;
    this.view.chosen = (i + n) % n;
    this.change({});
  }

  focus() {
    this.plot.hits.children[this.view.chosen]?.focus({ preventScroll: true });
  }

  // To a few digits more than the eye can tell apart.
  place(x, y) {
    const { state: { low, high } } = this.view, [bottom, top] = this.plot.range;
    return [rounded(x, high - low), rounded(y, top - bottom)];
  }

  // Of several points under the finger, the nearest.
  nearest(event) {
    const { view: { state }, plot } = this, box = plot.svg.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    const away = state.x.map((x, i) => Math.hypot(left - plot.x(x), top - plot.y(state.y[i])));
    return away.indexOf(Math.min(...away));
  }
}

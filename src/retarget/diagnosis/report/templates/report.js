// Draws the charts from the JSON in the page, in the colours of the page's theme.
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const root = document.documentElement;
  const shown = {}; // the view that each chart shows

  // Colours that begin with "--" are properties of the style sheet. Only colour attributes are
  // checked, so no text of the user is ever mistaken for one.
  function themed(value, style, colour) {
    if (typeof value === "string") {
      return colour && value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
    }
    if (Array.isArray(value)) return value.map((v) => themed(v, style, colour));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(
      Object.entries(value).map(([k, v]) => [k, themed(v, style, /color/.test(k))]),
    );
  }

  // "marker.opacity": a place inside an object.
  function put(object, path, value) {
    const keys = path.split(".");
    const last = keys.pop();
    for (const key of keys) object = object[key] ??= {};
    object[last] = value;
  }

  // A phone has room for a dozen names side by side.
  function thin(axis) {
    const step = Math.ceil((axis.tickvals?.length ?? 0) / 12);
    if (step < 2) return;
    axis.tickvals = axis.tickvals.filter((_, i) => i % step === 0);
    axis.ticktext = axis.ticktext.filter((_, i) => i % step === 0);
  }

  // Names that do not fit side by side are turned upright.
  function turn(axis, room) {
    const longest = Math.max(...axis.ticktext.map((text) => text.length));
    axis.tickangle = 7 * longest * axis.ticktext.length > room ? -90 : 0;
  }

  function draw(key) {
    const place = document.getElementById("chart-" + key);
    if (place.closest("details:not([open])")) return; // it has no width until it is opened
    const style = getComputedStyle(root);
    const data = themed(charts[key].data, style);
    const layout = themed(charts[key].layout, style);
    const view = charts[key].views[shown[key] || 0];
    if (view) {
      view.traces.forEach((changes, i) =>
        Object.entries(changes).forEach(([path, v]) => put(data[i], path, v)),
      );
      Object.entries(view.layout).forEach(([path, v]) => put(layout, path, v));
    }
    const small = place.clientWidth < 520;
    if (small) {
      thin(layout.xaxis);
      for (const trace of data) {
        if (trace.z?.length > 4) trace.texttemplate &&= trace.texttemplate.replace(".2~f", ".1~f");
      }
      if (place.closest(".first")) {
        const named = data.filter((trace) => trace.showlegend !== false).length;
        layout.showlegend &&= named <= 5; // more would leave no room for the picture
        layout.height = layout.showlegend ? 270 : 230;
      }
    }
    if (data[0].type === "heatmap") turn(layout.xaxis, place.clientWidth - 130);
    layout.width = place.clientWidth;
    layout.font = {
      family: style.getPropertyValue("--font"),
      size: small ? 11 : 12.5,
      color: style.getPropertyValue("--ink").trim(),
    };
    layout.uirevision = shown[key] || 0; // keeps the reader's zoom and legend
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a finger scrolls
    return Plotly.react(place, data, layout, { displayModeBar: false, displaylogo: false });
  }

  function drawAll() {
    Object.keys(charts).forEach(draw);
    for (const box of document.querySelectorAll(".box")) {
      box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    }
  }

  for (const select of document.querySelectorAll("select[data-chart]")) {
    select.selectedIndex = 0;
    select.addEventListener("change", () => {
      shown[select.dataset.chart] = select.selectedIndex;
      draw(select.dataset.chart);
    });
  }

  for (const folded of document.querySelectorAll("details")) {
    folded.addEventListener("toggle", () => {
      for (const chart of folded.querySelectorAll(".chart")) draw(chart.id.slice("chart-".length));
    });
  }
  for (const link of document.querySelectorAll("nav a")) {
    link.addEventListener("click", () => {
      const folded = document.querySelector(link.hash + " > details");
      if (folded) folded.open = true;
    });
  }

  // For printing: light colours, the width of paper, and everything unfolded.
  let opened = [];
  function printing(on) {
    root.toggleAttribute("data-printing", on);
    if (on) opened = [...opened, ...document.querySelectorAll("details:not([open])")];
    for (const folded of opened) folded.open = on;
    if (!on) opened = [];
    drawAll();
  }
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  matchMedia("print").addEventListener("change", (event) => printing(event.matches));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (innerWidth !== width) drawAll(); // a phone's address bar changes the height only
      width = innerWidth;
    }, 100);
  });

  drawAll();
  root.setAttribute("data-drawn", "");
})();

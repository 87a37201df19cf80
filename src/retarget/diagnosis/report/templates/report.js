// Draws the charts from the JSON in the page, in the colors of the page's theme.
(() => {
  "use strict";
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const root = document.documentElement;
  const computed = getComputedStyle(root);
  const css = (name) => computed.getPropertyValue(name).trim();

  // The one style of all charts; what has no color of its own gets the color of text.
  function template(small) {
    const [surface, ink, muted, grid] = ["--surface", "--ink", "--muted", "--line"].map(css);
    const axis = {
      automargin: true,
      gridcolor: grid,
      linecolor: grid,
      zerolinecolor: grid,
      nticks: 7,
      ticks: "",
      tickfont: { color: muted },
      title: { standoff: 8, font: { color: muted, size: 12 } },
    };
    // Above the chart, where it hides nothing and wraps on a phone.
    const above = { orientation: "h", x: 0, xanchor: "left", yanchor: "bottom" };
    const bar = { thickness: 10, len: 1, y: 1.01, ypad: 4, outlinewidth: 0, nticks: 5 };
    const heatmap = {
      colorscale: [[0, surface], [1, css("--warm")]],
      textfont: { color: ink },
      colorbar: { ...above, ...bar, tickangle: 0 },
    };
    return {
      data: { heatmap: [heatmap] },
      layout: {
        font: { family: css("--font"), size: small ? 11 : 12.5, color: ink },
        paper_bgcolor: surface,
        plot_bgcolor: surface,
        colorway: [ink],
        margin: { l: 8, r: 12, t: 12, b: 8 },
        hovermode: "closest",
        hoverlabel: { bgcolor: surface, bordercolor: grid, font: { color: ink } },
        legend: { ...above, y: 1.02 },
        shapedefaults: { fillcolor: css("--band"), line: { width: 0 }, layer: "below" },
        annotationdefaults: { font: { color: muted, size: 11 } },
        xaxis: axis,
        yaxis: axis,
      },
    };
  }

  // A phone has room for a dozen names side by side; those that do not fit are turned upright.
  function fitNames(axis, small, room) {
    const step = small ? Math.ceil(axis.tickvals.length / 12) : 1;
    for (const part of ["tickvals", "ticktext"]) {
      axis[part] = axis[part].filter((_, i) => i % step === 0);
    }
    const longest = Math.max(...axis.ticktext.map((text) => text.length));
    axis.tickangle = 7 * longest * axis.ticktext.length > room ? -90 : 0;
  }

  // Dates of which every second one is left out until they fit side by side.
  function fitDates(axis, room) {
    const longest = Math.max(...axis.ticktext.map((text) => text.length));
    while (axis.tickvals.length > 2 && 8 * longest * axis.tickvals.length > room) {
      for (const part of ["tickvals", "ticktext"]) axis[part] = axis[part].filter((_, i) => i % 2 === 0);
    }
  }

  function draw(key) {
    const place = document.getElementById("chart-" + key);
    if (place.closest("details:not([open])")) return; // it has no width until it is opened
    const { data, layout } = structuredClone(charts[key]);
    const small = place.clientWidth < 520;
    if (data[0].type === "heatmap") {
      if (small && layout.xaxis.tickvals.length > 4) {
        data[0].texttemplate &&= data[0].texttemplate.replace(".2~f", ".1~f");
      }
      fitNames(layout.xaxis, small, place.clientWidth - 130);
    }
    if (data[0].type === "scatter" && layout.xaxis.ticktext && layout.xaxis.type !== "log") {
      fitDates(layout.xaxis, place.clientWidth - 70);
    }
    layout.template = template(small);
    layout.width = place.clientWidth;
    layout.uirevision = true; // keeps the reader's zoom and legend
    if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false; // a finger scrolls
    return Plotly.react(place, data, layout, { displayModeBar: false, displaylogo: false });
  }

  function drawAll() {
    Object.keys(charts).forEach(draw);
    for (const box of document.querySelectorAll(".box")) {
      box.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1);
    }
  }

  for (const folded of document.querySelectorAll("details")) {
    folded.addEventListener("toggle", drawAll);
  }
  for (const link of document.querySelectorAll("nav a")) {
    link.addEventListener("click", () => {
      const title = document.querySelector(link.hash + " > details > summary > h2");
      if (title) title.closest("details").open = true;
    });
  }

  // For printing: light colors, the width of paper, and everything unfolded.
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

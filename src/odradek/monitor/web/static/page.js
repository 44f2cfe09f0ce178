// Pauses updates, shows local times, and draws the plots. The page is complete without it.
(() => {
  "use strict";
  const plots = new Map();
  let isPaused = false;
  let isLocal = false;
  try { isLocal = localStorage.getItem("odradek-zone") === "local"; } catch { /* storage may be off */ }

  const twoDigits = (number) => String(number).padStart(2, "0");

  function localText(moment) {
    const date = [moment.getFullYear(), twoDigits(moment.getMonth() + 1), twoDigits(moment.getDate())].join("-");
    const time = [moment.getHours(), moment.getMinutes(), moment.getSeconds()].map(twoDigits).join(":");
    return `${date} ${time}`;
  }

  function showTimes(root) {
    for (const one of root.querySelectorAll("time[datetime]")) {
      const moment = new Date(one.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      const text = isLocal ? localText(moment) : one.dateTime.replace("T", " ").replace("Z", " UTC");
      if (one.textContent !== text) one.textContent = text;
    }
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function axisTime(seconds, step) {
    const moment = new Date(seconds * 1000);
    const text = isLocal ? localText(moment) : moment.toISOString().slice(0, 19).replace("T", " ");
    return step >= 86400 ? text.slice(5, 10) : step >= 60 ? text.slice(11, 16) : text.slice(11);
  }

  // A line for each rewind and jump; the list of findings has them as text.
  function drawMarks(u, marks) {
    u.ctx.save();
    u.ctx.strokeStyle = colour("bad");
    u.ctx.lineWidth = 2;
    for (const ms of marks) {
      const x = u.valToPos(ms / 1000, "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }

  function options(plot, width) {
    const axis = { stroke: colour("text"), grid: { stroke: colour("rule"), width: 1 },
      ticks: { stroke: colour("line"), width: 1 } };
    const strokes = plot.series.length > 1 ? ["end", "committed"] : ["committed"];
    return {
      width, height: 240,
      tzDate: (seconds) => {
        const moment = new Date(seconds * 1000);
        return isLocal ? moment : uPlot.tzDate(moment, "Etc/UTC");
      },
      hooks: { draw: [(u) => drawMarks(u, plot.marks)] },
      axes: [{ ...axis, space: 80, values: (u, ticks, at, space, step) => ticks.map((one) => axisTime(one, step)) }, { ...axis, size: 70, values: (u, ticks) => ticks.map((tick) => tick.toLocaleString("en")) }],
      series: [{ label: "Time", value: (u, seconds) => seconds === null ? "–" : axisTime(seconds, 1) }, ...plot.series.map((one, at) => ({
        label: one.label, stroke: colour(strokes[at]), width: 2, spanGaps: true, dash: at ? [6, 4] : undefined,
        value: (u, value) => value === null || value === undefined ? "–" : value.toLocaleString("en"),
      }))],
    };
  }

  function draw() {
    const seen = new Set();
    for (const figure of document.querySelectorAll("figure[data-plot]")) {
      const plot = JSON.parse(figure.dataset.plot);
      const target = figure.querySelector(".canvas");
      const data = [plot.times.map((ms) => ms / 1000), ...plot.series.map((one) => one.values)];
      const key = JSON.stringify([plot.id, plot.title, isLocal, colour("text"), target.clientWidth, plot.marks]);
      const known = plots.get(plot.id);
      seen.add(plot.id);
      if (known && known.key === key && target.contains(known.chart.root)) {
        known.chart.setData(data);
        continue;
      }
      if (known) known.chart.destroy();
      plots.set(plot.id, { key, chart: new uPlot(options(plot, target.clientWidth), data, target) });
    }
    for (const [id, known] of plots) {
      if (!seen.has(id)) { known.chart.destroy(); plots.delete(id); }
    }
  }

  function show() { showTimes(document); draw(); }

  const KEPT = new Set(["open", "data-htmx-powered"]); // what this page and htmx have set
  const SLICE_MS = 15;
  let renewals = 0;

  // Makes a node equal to a fresh one, and pauses behind each element. What is equal stays as it is.
  function* patch(node, fresh) {
    if (node.isEqualNode(fresh)) return;
    if (node.nodeName !== fresh.nodeName || node.id !== fresh.id) { node.replaceWith(fresh); return; }
    if (node.nodeType !== Node.ELEMENT_NODE) { node.nodeValue = fresh.nodeValue; return; }
    for (const one of [...node.attributes]) {
      if (!fresh.hasAttribute(one.name) && !KEPT.has(one.name)) node.removeAttribute(one.name);
    }
    for (const one of fresh.attributes) {
      if (node.getAttribute(one.name) !== one.value) node.setAttribute(one.name, one.value);
    }
    yield;
    if (node.hasAttribute("hx-morph-skip-children")) return; // the canvas of a plot
    const before = [...node.childNodes];
    const after = [...fresh.childNodes];
    for (const [at, child] of after.entries()) {
      if (at < before.length) yield* patch(before[at], child);
      else { node.append(child); yield; }
    }
    for (const child of before.slice(after.length)) { child.remove(); yield; }
  }

  // Renews the view in short slices, so that a slow processor can scroll and type meanwhile.
  async function renew(view, fresh) {
    const own = ++renewals;
    showTimes(fresh);
    let begun = performance.now();
    for (const pause of patch(view, fresh)) {
      if (performance.now() - begun < SLICE_MS) continue;
      await new Promise((next) => { setTimeout(next); });
      if (own !== renewals) return; // a newer one goes on
      begun = performance.now();
    }
    await new Promise((next) => { setTimeout(next); });
    draw();
    document.dispatchEvent(new Event("odradek:renewed"));
  }

  function press(button, value) { button.setAttribute("aria-pressed", String(value)); }

  document.addEventListener("htmx:before:request", (event) => { if (isPaused) event.preventDefault(); });
  document.addEventListener("htmx:before:swap", (event) => {
    const view = document.getElementById("view");
    const fresh = event.detail.tasks.find((one) => one.target === view)?.fragment.querySelector("#view");
    if (!fresh) return;
    event.preventDefault();
    renew(view, fresh);
  });
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const pause = document.getElementById("pause");
  const zone = document.getElementById("zone");
  pause.addEventListener("click", () => { isPaused = !isPaused; press(pause, isPaused); });
  zone.addEventListener("click", () => {
    isLocal = !isLocal;
    try { localStorage.setItem("odradek-zone", isLocal ? "local" : "utc"); } catch { /* storage may be off */ }
    press(zone, isLocal);
    show();
  });
  press(zone, isLocal);
  document.querySelector(".controls").hidden = false;
  show();
})();

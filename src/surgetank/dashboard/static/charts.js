// The six charts. Each is described by its series; one class draws them all.

import { clock, compact, element, rate, seconds, words } from "./format.js";
import { SLOTS, STATES } from "./store.js";

const HATCH = { starting: "/", standby: "\\" }; // told apart without colour
const DASH = [[], [], [], [6, 3], [2, 3], [8, 3, 2, 3]]; // tenants 4 to 6: no hue needs to be told alone

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const slotColor = (slot) => css(slot === SLOTS ? "--others" : `--series-${slot}`);

// [{label, color, values, ...}] for each chart, and what to say when there is nothing.
export const CHARTS = [
  {
    id: "arrivals",
    title: "Arrivals",
    unit: "requests/s",
    show: rate,
    stacked: true,
    legend: false, // the tenants' row is its legend
    empty: (m) => `No request in the last ${m}.`,
    isEmpty: (series) => series.every(({ values }) => !values.some(Boolean)),
    series: (store, hidden) =>
      store
        .arrivals()
        .map((values, slot) => ({
          label: slot === SLOTS ? "others" : store.tenants[slot],
          color: slotColor(slot),
          values,
          slot,
        }))
        .filter(({ slot, label }) => label !== null && !hidden.has(slot))
        .filter(({ slot }) => slot !== SLOTS || store.others),
    say: (store) => `now ${rate(store.last?.flows?.arrivals)} requests per second`,
  },
  {
    id: "ttft",
    title: "Time to first token",
    note: "P95 thick, P50 thin, dots: requests",
    unit: "seconds",
    show: seconds,
    legend: false,
    empty: (m) => `No first token in the last ${m}.`,
    isEmpty: (series) => series.every(({ values }) => values.every((v) => v === null)),
    series: (store, hidden) =>
      store
        .firstTokens()
        .flatMap(({ p50, p95 }, slot) => {
          const own = { color: slotColor(slot), slot, dash: DASH[slot] };
          const name = store.tenants[slot];
          return [
            { ...own, label: `${name} P50`, values: p50, width: 1 },
            { ...own, label: `${name} P95`, values: p95, width: 2 },
          ];
        })
        .filter(({ slot }) => store.tenants[slot] !== null && !hidden.has(slot)),
    points: (store, hidden) => store.points(hidden),
    say: (store) => {
      const { p50, p95 } = store.last?.state?.ttft ?? {};
      return `now P50 ${seconds(p50)}, P95 ${seconds(p95)}`;
    },
  },
  {
    id: "queue",
    title: "Queue",
    unit: "requests",
    second: "age, seconds",
    show: compact,
    empty: (m) => `Nothing waited in the last ${m}.`,
    isEmpty: (series) => series.every(({ values }) => !values.some(Boolean)),
    series: (store) => [
      {
        label: "waiting",
        color: css("--series-0"),
        values: store.column((s) => s.state?.queue),
        fill: true,
      },
      {
        label: "age of the oldest",
        color: css("--series-1"),
        values: store.column((s) => s.state?.queue_age),
        scale: "second",
        show: seconds,
        dash: [6, 3],
      },
    ],
    say: (store) => {
      const state = store.last?.state;
      return `now ${compact(state?.queue)} waiting, the oldest for ${seconds(state?.queue_age)}`;
    },
  },
  {
    id: "replicas",
    title: "Replicas by state",
    unit: "replicas",
    show: compact,
    stacked: true,
    stepped: true,
    whole: true,
    empty: () => "No replica is known to the gateway.",
    isEmpty: (series) => series.every(({ values }) => !values.some(Boolean)),
    series: (store) =>
      store
        .replicas()
        .map((values, i) => ({
          label: STATES[i] ?? "other",
          color: css(`--${STATES[i] ?? "others"}`),
          hatch: HATCH[STATES[i]],
          values,
        }))
        .filter(({ label, values }) => label !== "other" || values.some(Boolean)),
    say: (store) => {
      const now = store.last?.state?.replicas;
      return now ? STATES.map((s) => `${now[s] ?? 0} ${s}`).join(", ") : "now unknown";
    },
  },
  {
    id: "refusals",
    title: "Refused and failed",
    unit: "requests/s",
    show: rate,
    stacked: true,
    empty: (m) => `Nothing was refused in the last ${m}.`,
    isEmpty: (series) => series.length === 0,
    series: (store) =>
      store.refusals().map((values, row) => ({
        label: store.reasons[row] === null ? "other reasons" : words(store.reasons[row]),
        color: slotColor(store.reasons[row] === null ? SLOTS : row),
        values,
      })),
    say: (store) => `now ${rate(store.last?.flows?.refused)} refused per second`,
  },
  {
    id: "kv",
    title: "KV cache",
    unit: "tokens",
    show: compact,
    empty: () => "No replica says how many KV tokens it holds.",
    isEmpty: (series) => series.every(({ values }) => values.every((v) => v === null)),
    series: (store) => [
      {
        label: "held",
        color: css("--series-0"),
        values: store.column((s) => s.state?.kv.held),
        fill: true,
      },
      {
        label: "held + waiting",
        color: css("--series-1"),
        values: store.column(({ state }) =>
          state?.kv.held == null || state.kv.waiting == null ? null : state.kv.held + state.kv.waiting,
        ),
        dash: [6, 3],
      },
      {
        label: "capacity",
        color: css("--ink-quiet"),
        values: store.column((s) => s.state?.kv.capacity),
        width: 2,
      },
    ],
    say: (store) => {
      const kv = store.last?.state?.kv;
      return `now ${compact(kv?.held)} of ${compact(kv?.capacity)} tokens held`;
    },
  },
];

export class Chart {
  #plot = null;
  #shape = "";
  #series = [];
  #points = [];
  #spec;
  #on;
  #window = [0, 1];

  // `on.cursor(index or null)` hears the pointer and the arrow keys.
  constructor(spec, parent, on) {
    this.#spec = spec;
    this.#on = on;
    this.title = element("h2", { text: spec.title });
    if (spec.note) this.title.append(" ", element("span", { className: "quiet", text: spec.note }));
    this.canvas = element("div", { className: "plot" });
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "img");
    this.empty = element("p", { className: "empty" });
    this.legend = element("ul", { className: "legend" });
    this.legend.hidden = spec.legend === false;
    const figure = element("figure", {}, this.title, this.legend, this.canvas, this.empty);
    figure.id = spec.id;
    parent.append(figure);
    new ResizeObserver(() => this.#plot?.setSize(this.#size())).observe(this.canvas);
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    this.canvas.addEventListener("blur", () => this.#plot?.setCursor({ left: -10, top: -10 }));
  }

  draw(store, hidden, window, index) {
    const spec = this.#spec;
    const series = spec.series(store, hidden);
    this.#series = spec.stacked ? series.reverse() : series; // the first stands on the axis
    this.#points = spec.points?.(store, hidden) ?? [];
    this.#window = window;
    const empty = spec.isEmpty(this.#series);
    this.empty.hidden = !empty;
    this.empty.textContent = empty ? spec.empty("15 minutes") : "";
    this.canvas.classList.toggle("vacant", empty);
    this.canvas.setAttribute("aria-label", `${spec.title}, ${spec.unit}: ${spec.say(store)}`);
    const data = [store.times(), ...(spec.stacked ? stack(this.#series) : this.#series.map((s) => s.values))];
    const shape = JSON.stringify(this.#series.map(({ label, color }) => [label, color]));
    if (this.#plot === null || shape !== this.#shape) this.#build(shape, data);
    else this.#plot.setData(data);
    this.label(index ?? data[0].length - 1);
  }

  // Values of the legend at one sample.
  label(index) {
    if (this.#spec.legend === false) return;
    const order = this.#spec.stacked ? this.#series.toReversed() : this.#series;
    this.legend.replaceChildren(
      ...order.map(({ label, color, hatch, values, show }) => {
        const value = (show ?? this.#spec.show)(values[index]);
        const key = element("i", { className: hatch ? "swatch hatched" : "swatch" });
        key.style.setProperty("--key", color);
        return element("li", {}, key, `${label} `, element("b", { text: value }));
      }),
    );
  }

  rebuild() {
    this.#shape = "";
  }

  #size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || !this.#plot) return;
    event.preventDefault();
    const [times] = this.#plot.data;
    const at = Math.min(times.length - 1, Math.max(0, (this.#plot.cursor.idx ?? times.length - 1) + step));
    this.#plot.setCursor({ left: this.#plot.valToPos(times[at], "x"), top: 10 });
  }

  #build(shape, data) {
    this.#plot?.destroy();
    this.#shape = shape;
    const spec = this.#spec;
    const axis = {
      stroke: css("--ink-quiet"),
      grid: { stroke: css("--grid"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
      labelFont: "11px system-ui, sans-serif",
    };
    const y = {
      ...axis,
      label: spec.unit,
      labelSize: 14,
      labelGap: 0,
      size: 34,
      gap: 3,
      values: (_, splits) => splits.map((v) => (spec.whole && v % 1 ? "" : compact(v))),
    };
    const axes = [
      { ...axis, space: 70, size: 24, values: (_, splits) => splits.map(clock) },
      spec.second ? { ...y, stroke: this.#series[0].color } : y,
    ];
    if (spec.second) {
      axes.push({
        ...y,
        scale: "second",
        side: 1,
        label: spec.second,
        stroke: this.#series[1].color,
        grid: { show: false },
      });
    }
    const options = {
      ...this.#size(),
      legend: { show: false },
      padding: [8, spec.second ? 0 : 24, 0, 0],
      cursor: {
        sync: { key: "surgetank", setSeries: false },
        drag: { x: false, y: false },
        points: { size: 6 },
        y: false,
      },
      scales: {
        x: { time: true, range: () => this.#window },
        y: { range: (_, low, high) => [0, ceiling(high, this.#points, this.#window)] },
        second: { range: (_, low, high) => [0, ceiling(high, [], this.#window)] },
      },
      axes,
      series: [{}, ...this.#series.map((one) => this.#line(one))],
      bands: spec.stacked
        ? this.#series.slice(1).map((_, i) => ({ series: [i + 1, i + 2], fill: this.#fill(this.#series[i]) }))
        : [],
      hooks: {
        drawAxes: [(u) => this.#dots(u)],
        setCursor: [(u) => this.#on.cursor(u.cursor.left >= 0 ? (u.cursor.idx ?? null) : null)],
      },
    };
    this.#plot = new uPlot(options, data, this.canvas);
    // The plot takes the keyboard as a whole; its parts are drawn, and say nothing by themselves.
    for (const part of this.canvas.querySelectorAll("canvas")) part.setAttribute("aria-hidden", "true");
  }

  #line(one) {
    const { stacked, stepped } = this.#spec;
    const last = one === this.#series.at(-1);
    return {
      label: one.label,
      scale: one.scale ?? "y",
      stroke: one.color,
      width: one.width ?? (stepped ? 0.6 : stacked ? 0 : 1.6),
      dash: stacked ? undefined : one.dash,
      fill: (stacked && last) || one.fill ? this.#fill(one) : undefined,
      points: { show: false },
      paths: stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    };
  }

  #fill({ color, hatch }) {
    if (hatch) return hatched(color, hatch);
    return color + (this.#spec.stacked ? "cc" : "33");
  }

  // Single requests under the lines.
  #dots(u) {
    if (this.#points.length === 0) return;
    const { ctx, bbox } = u;
    const size = 2.5 * devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.globalAlpha = 0.4;
    const colors = Array.from({ length: SLOTS + 1 }, (_, slot) => slotColor(slot));
    for (const [t, value, slot] of this.#points) {
      if (t < this.#window[0]) continue;
      ctx.fillStyle = colors[slot];
      ctx.fillRect(u.valToPos(t, "x", true) - size / 2, u.valToPos(value, "y", true) - size / 2, size, size);
    }
    ctx.restore();
  }
}

// Each series on top of all that come after it, so that the last one stands on the axis.
function stack(series) {
  const sums = [];
  let below = null;
  for (const { values } of [...series].reverse()) {
    const under = below;
    below = values.map((v, i) => (v === null ? null : v + (under?.[i] ?? 0)));
    sums.unshift(below);
  }
  return sums;
}

// Room above the highest value, and an axis of 1 where there is none.
function ceiling(high, points, [from]) {
  const highest = points.reduce((most, [t, v]) => (t >= from && v > most ? v : most), high ?? 0);
  return highest > 0 ? highest * 1.08 : 1;
}

function hatched(color, direction) {
  const side = 7 * devicePixelRatio;
  const tile = new OffscreenCanvas(side, side);
  const ctx = tile.getContext("2d");
  ctx.fillStyle = color + "40";
  ctx.fillRect(0, 0, side, side);
  ctx.strokeStyle = color;
  ctx.lineWidth = side / 4;
  const [from, to] = direction === "/" ? [side, 0] : [0, side];
  for (const shift of [-side, 0, side]) {
    ctx.beginPath();
    ctx.moveTo(shift, from);
    ctx.lineTo(shift + side, to);
    ctx.stroke();
  }
  return ctx.createPattern(tile, "repeat");
}

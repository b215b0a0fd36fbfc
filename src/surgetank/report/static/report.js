// Draws every chart of a report from the JSON that stands beside it.
// Drag: zoom; double click, Esc or the button: all again; arrow keys: read the values.
"use strict";
(() => {
  const NONE = "–";
  const DAY = 86400;
  const root = document.documentElement;
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (slot) => css(slot === null ? "--others" : `--series-${slot}`);
  const FONT = '12px system-ui, "Noto Sans", "Noto Sans CJK SC", "Noto Sans Arabic", sans-serif';

  // Numbers: as report/numbers.py writes them.
  const grouped = (v, digits) =>
    v.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  function number(v) {
    if (v == null) return NONE;
    const size = Math.abs(v);
    if (size >= 1e15) return v.toExponential(2);
    if (size >= 99.95 || Number.isInteger(v)) return grouped(v, 0);
    if (size < 0.0001) return v.toExponential(1);
    if (size >= 9.995) return v.toFixed(1);
    return v.toFixed(size >= 0.9995 ? 2 : 2 - Math.floor(Math.log10(size)));
  }
  function compact(v) {
    if (v == null) return NONE;
    for (const [limit, by, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (Math.abs(v) >= limit) return number(v / by) + unit;
    return number(v);
  }
  function seconds(v) {
    if (v == null) return NONE;
    const size = Math.abs(v);
    if (0 < size && size < 0.001) return `${number(v * 1e6)} µs`;
    if (0 < size && size < 0.9995) return `${number(v * 1000)} ms`;
    if (size < 120) return `${number(v)} s`;
    const tenths = (x) => String(Math.round(x * 10) / 10);
    if (size < 7200) return `${tenths(v / 60)} min`;
    return size < 2 * DAY ? `${tenths(v / 3600)} h` : `${tenths(v / DAY)} days`;
  }
  const percent = (v) => (v == null ? NONE : `${number(100 * v)} %`);
  const SHOW = { number, compact, seconds, percent };
  const tick = (show) => (v) => {
    if (v == null) return "";
    if (show === "seconds") return seconds(v).replace(/\.0+ /, " ");
    return show === "percent" ? `${Number((100 * v).toPrecision(6))} %` : short(v);
  };
  function short(v) {
    for (const [limit, by, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (Math.abs(v) >= limit) return `${Number((v / by).toPrecision(6))}${unit}`;
    return String(Number(v.toPrecision(6)));
  }

  // Times: UTC, or since the log's origin.
  const two = (n) => String(n).padStart(2, "0");
  const utc = (t) => new Date(t * 1000).toISOString();
  function clock(t, calendar, withSeconds, first) {
    if (calendar) {
      const text = utc(t);
      const day = first || t % DAY === 0 ? `\n${text.slice(0, 10)}` : "";
      return text.slice(11, withSeconds ? 19 : 16) + day;
    }
    const whole = Math.round(Math.abs(t));
    const days = Math.floor(whole / DAY);
    const sign = t < 0 ? "-" : "";
    const day = days && (first || whole % DAY === 0) ? `\n${days} d` : "";
    const hours = Math.floor((whole % DAY) / 3600);
    return `${sign}${hours}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}${day}`;
  }
  const moment = (t, calendar) =>
    calendar ? utc(t).slice(0, 19).replace("T", " ") : clock(t, false, true, true).split("\n").reverse().join(" ");
  const STEPS = [
    0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 365 * DAY, 3650 * DAY,
  ];

  function element(tag, className = "", text = null) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== null) made.textContent = text;
    return made;
  }
  function swatch(kind, color) {
    const made = element("i", `swatch ${kind}`);
    made.style.setProperty("--key", color);
    return made;
  }
  const KINDS = { line: "line", step: "line", points: "dots", area: "", bar: "" };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.spec = JSON.parse(figure.querySelector("script").textContent);
      const { x, stacked } = this.spec;
      this.xs = Array.isArray(x) ? x : Array.from({ length: x.n }, (_, i) => x.start + i * x.step);
      // In a stack the first stands on the axis, so it is drawn last.
      this.series = this.spec.series.map((one) => ({ ...one, hidden: false }));
      if (stacked) this.series.reverse();
      this.holder = figure.querySelector(".plot");
      this.legend = figure.querySelector(".legend");
      if (this.spec.empty) {
        this.holder.classList.add("vacant");
        this.holder.textContent = this.spec.empty;
        return;
      }
      this.zoomed = null;
      this.reset = element("button", "reset", "All");
      this.reset.type = "button";
      this.reset.title = "Show all again (double click, or Esc)";
      this.reset.hidden = true;
      this.reset.addEventListener("click", () => this.all());
      figure.append(this.reset);
      this.tip = element("div", "tip");
      this.tip.setAttribute("role", "status");
      this.tip.hidden = true;
      this.holder.addEventListener("keydown", (event) => this.key(event));
      this.holder.addEventListener("blur", () => this.leave());
      this.draw();
      new ResizeObserver(() => this.fit()).observe(this.holder);
    }

    size() {
      return { width: Math.max(120, this.holder.clientWidth), height: this.holder.clientHeight };
    }
    fit() {
      const { width, height } = this.size();
      if (this.plot && (width !== this.plot.width || height !== this.plot.height)) this.plot.setSize({ width, height });
    }
    all() {
      this.plot.setScale("x", { min: this.xs[0], max: this.xs.at(-1) });
      this.reset.hidden = true;
      this.zoomed = null;
    }
    leave() {
      this.plot.setCursor({ left: -10, top: -10 });
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20 }[event.key];
      if (event.key === "Escape") this.all();
      else if (event.key === "+" || event.key === "-") this.scale(event.key === "+" ? 0.5 : 2);
      else if (step) {
        const { min, max } = this.plot.scales.x;
        const from = this.xs.findIndex((x) => x >= min);
        const to = this.xs.findLastIndex((x) => x <= max);
        const now = this.plot.cursor.idx ?? (step > 0 ? from - 1 : to + 1);
        const at = Math.min(to, Math.max(from, now + step));
        this.plot.setCursor({ left: this.plot.valToPos(this.xs[at], "x"), top: 20 });
      } else return;
      event.preventDefault();
    }
    scale(by) {
      const { min, max } = this.plot.scales.x;
      const [low, high] = [this.xs[0], this.xs.at(-1)];
      const middle = this.plot.cursor.idx == null ? (min + max) / 2 : this.xs[this.plot.cursor.idx];
      const from = Math.max(low, middle - (middle - min) * by);
      const to = Math.min(high, middle + (max - middle) * by);
      if (to > from) this.plot.setScale("x", { min: from, max: to });
    }

    // Columns for uPlot: x, the bands' two edges each, then the series.
    columns() {
      const { bands, stacked } = this.spec;
      const edges = bands.flatMap(({ low, high }) => [high, low]);
      if (!stacked) return [this.xs, ...edges, ...this.series.map((s) => s.values)];
      let below = this.xs.map(() => 0);
      const sums = [];
      for (const { values, hidden } of this.series.toReversed()) {
        if (!hidden) below = below.map((sum, i) => sum + (values[i] ?? 0));
        sums.unshift(below);
      }
      return [this.xs, ...edges, ...sums];
    }

    draw() {
      this.plot?.destroy();
      const { xAxis, yAxis, bands, stacked, calendar } = this.spec;
      const quiet = css("--ink-quiet");
      const faint = css("--others");
      const first = 1 + 2 * bands.length; // column of the first series
      const log = (axis) => axis.kind === "log";
      const base = {
        stroke: quiet,
        grid: { stroke: css("--grid"), width: 1 },
        ticks: { show: false },
        font: FONT,
        labelFont: FONT,
        labelGap: 0,
        labelSize: 16,
        filter: (_, splits) => splits,
      };
      const byTime = xAxis.kind === "time";
      const x = {
        ...base,
        label: byTime ? undefined : xAxis.title || undefined,
        space: byTime ? 76 : 46,
        size: byTime ? 36 : 22,
        incrs: byTime ? STEPS : undefined,
        values: (u, splits, _, __, step) => {
          if (byTime) return splits.map((t, i) => clock(t, calendar, step < 60, i === 0));
          if (xAxis.names) return splits.map((v) => cut(xAxis.names[v] ?? "", u.bbox.width / devicePixelRatio / splits.length));
          return splits.map(tick(xAxis.show));
        },
      };
      if (xAxis.ticks) x.splits = (u) => spaced(u, xAxis.ticks);
      else if (xAxis.names) x.splits = (u) => spaced(u, this.xs);
      else if (log(xAxis)) x.splits = (u) => decades(u.scales.x);
      const y = {
        ...base,
        label: yAxis.title || undefined,
        size: (u, labels) => 12 + Math.max(18, ...(labels ?? []).map((text) => width(text ?? ""))),
        gap: 4,
        values: (_, splits) => splits.map(tick(yAxis.show)),
      };
      if (log(yAxis)) y.splits = (u) => decades(u.scales.y);
      const whole = { min: this.xs[0], max: this.xs.at(-1) };
      const options = {
        ...this.size(),
        legend: { show: false },
        padding: [10, 24, 0, 0],
        cursor: {
          drag: { x: true, y: false, dist: 4 },
          y: false,
          points: { size: 7 },
          sync: byTime ? { key: "time", scales: ["x", null] } : undefined,
        },
        scales: {
          x: {
            time: false,
            distr: log(xAxis) ? 3 : 1,
            range: (u, low, high) => this.between(low, high),
          },
          y: { distr: log(yAxis) ? 3 : 1, range: (u, low, high) => (log(yAxis) ? decadesOf(low, high, bands.length > 0) : linear(low, high)) },
        },
        axes: [x, y],
        series: [
          {},
          ...bands.flatMap(() => [
            { label: "", stroke: faint, width: 0.5, points: { show: false }, auto: !log(yAxis) },
            { label: "", stroke: faint, width: 0.5, points: { show: false }, auto: !log(yAxis) },
          ]),
          ...this.series.map((one, i) => this.line(one, i)),
        ],
        bands: [
          ...bands.map((_, i) => ({ series: [1 + 2 * i, 2 + 2 * i], fill: faint + "40" })),
          ...(stacked
            ? this.series.slice(1).map((_, i) => ({
                series: [first + i, first + i + 1],
                fill: colour(this.series[i].colour) + "d0",
              }))
            : []),
        ],
        hooks: {
          drawClear: [(u) => this.marks(u)],
          setCursor: [(u) => this.tell(u)],
          setScale: [(u, key) => key === "x" && this.onZoom(u)],
        },
      };
      this.holder.replaceChildren();
      this.plot = new uPlot(options, this.columns(), this.holder);
      this.plot.over.append(this.tip);
      for (const part of this.holder.querySelectorAll("canvas")) part.setAttribute("aria-hidden", "true");
      if (this.zoomed) this.plot.setScale("x", this.zoomed);
      this.key_();
    }

    between(low, high) {
      const pad = this.spec.xAxis.kind === "names" || this.series.some(({ draw }) => draw === "bar") ? 0.6 : 0;
      const [first, last] = [this.xs[0], this.xs.at(-1)];
      if (low === null || first === last) return log10(this.spec) ? [first / 2, first * 2] : [first - 0.6, first + 0.6];
      return [low === first ? low - pad : low, high === last ? high + pad : high];
    }

    onZoom(u) {
      const { min, max } = u.scales.x;
      const [low, high] = [this.xs[0], this.xs.at(-1)];
      const slack = (high - low) * 1e-9;
      const all = min <= low + slack && max >= high - slack;
      this.zoomed = all ? null : { min, max };
      this.reset.hidden = all;
      this.figure.dataset.zoomed = String(!all);
    }

    line(one, i) {
      const { stacked } = this.spec;
      const color = colour(one.colour);
      const bottom = stacked && i === this.series.length - 1;
      const area = one.draw === "area" || one.draw === "bar";
      return {
        label: one.label,
        show: !one.hidden || stacked,
        stroke: stacked ? css("--card") : color,
        width: stacked ? (this.xs.length > 300 ? 0 : 0.5) : one.draw === "points" ? 0 : one.width,
        dash: one.dashed ? [6, 4] : undefined,
        fill: bottom ? color + "d0" : area ? color + (one.draw === "bar" ? "b0" : "38") : undefined,
        points: one.draw === "points" ? { show: true, size: 6, fill: color, stroke: color } : { show: false },
        paths:
          one.draw === "bar"
            ? uPlot.paths.bars({ size: [0.8, 60] })
            : one.draw === "step"
              ? uPlot.paths.stepped({ align: 1 })
              : undefined,
      };
    }

    // Episodes: shaded under the curves, a line at each side.
    marks(u) {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      for (const [start, end] of this.spec.spans) {
        const left = u.valToPos(start, "x", true);
        const right = Math.max(u.valToPos(end, "x", true), left + devicePixelRatio);
        ctx.fillStyle = css("--series-1") + "26";
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
        ctx.fillStyle = css("--series-1") + "90";
        ctx.fillRect(left, bbox.top, right - left, 3 * devicePixelRatio);
      }
      ctx.restore();
    }

    key_() {
      const { bands, spans, spansAre, stacked } = this.spec;
      const order = stacked ? this.series.toReversed() : this.series;
      const items = order.map((one) => {
        const button = element("button");
        button.type = "button";
        button.setAttribute("aria-pressed", String(!one.hidden));
        button.title = "Hide or show";
        button.append(
          swatch(one.dashed ? "dashed" : stacked ? "" : KINDS[one.draw], colour(one.colour)),
          element("bdi", "", one.label),
        );
        button.addEventListener("click", () => {
          one.hidden = !one.hidden;
          this.draw();
          this.legend.children[order.indexOf(one)].firstChild.focus();
        });
        return this.item(button);
      });
      for (const { label } of bands) items.push(this.item(swatch("faint", css("--others")), element("bdi", "", label)));
      if (spans.length) {
        items.push(this.item(swatch("faint", css("--series-1")), element("bdi", "", spansAre)));
      }
      this.legend.replaceChildren(...items);
    }
    item(...parts) {
      const made = element("li");
      made.append(...parts);
      return made;
    }

    tell(u) {
      const { idx, left } = u.cursor;
      this.tip.hidden = idx == null || left < 0;
      if (this.tip.hidden) return;
      const { xAxis, bands, spans, stacked, calendar } = this.spec;
      const at = this.xs[idx];
      const where =
        xAxis.kind === "time" ? moment(at, calendar) : xAxis.names ? xAxis.names[at] : SHOW[xAxis.show](at);
      const order = (stacked ? this.series.toReversed() : this.series).filter(({ hidden }) => !hidden);
      const told = stacked ? order.filter(({ values }) => values[idx]) : order;
      const line = (mark, name, value) => {
        const row = element("div");
        row.append(mark, element("bdi", "", name), element("b", "", value));
        return row;
      };
      const rows = told.map((one) =>
        line(
          swatch(one.dashed ? "dashed" : stacked ? "" : KINDS[one.draw], colour(one.colour)),
          one.label,
          SHOW[one.show](one.values[idx]),
        ),
      );
      const show = SHOW[this.spec.yAxis.show];
      for (const { label, low, high } of bands) {
        if (low[idx] == null) continue;
        rows.push(line(swatch("faint", css("--others")), label, `${show(low[idx])} to ${show(high[idx])}`));
      }
      for (const [start, end, label] of spans) {
        if (start <= at && at <= end) rows.push(line(swatch("faint", css("--series-1")), label, ""));
      }
      const unit = xAxis.kind === "time" || !xAxis.title ? "" : `${xAxis.title}: `;
      this.tip.replaceChildren(element("div", "quiet", unit + where), ...rows);
      const room = u.over.clientWidth;
      const own = this.tip.offsetWidth;
      const place = left + 14 + own > room ? Math.max(0, left - 14 - own) : left + 14;
      this.tip.style.left = `${place}px`;
      this.tip.style.top = "6px";
    }
  }

  const log10 = (spec) => spec.xAxis.kind === "log";
  const ruler = document.createElement("canvas").getContext("2d");
  function width(text) {
    ruler.font = FONT;
    return ruler.measureText(text).width;
  }
  // Where a log axis has labels: at powers of ten, and at 2 and 5 times them where there are few.
  function decades({ min, max }) {
    const found = [];
    const leads = max / min < 300 ? [1, 2, 5] : [1];
    for (let power = Math.floor(Math.log10(min)); power <= Math.log10(max); power++) {
      for (const lead of leads) {
        const at = Number(`${lead}e${power}`);
        if (min <= at && at <= max) found.push(at);
      }
    }
    return found;
  }
  // A label that fits its room.
  function cut(text, room) {
    let kept = [...text];
    if (width(text) <= room) return text;
    while (kept.length > 1 && width(`${kept.join("")}…`) > room) kept = kept.slice(0, -1);
    return `${kept.join("")}…`;
  }
  // A band that narrows to nothing must not press the curves together: only its middle is kept in view.
  function decadesOf(low, high, banded) {
    if (low === null || high <= 0) return [0.1, 10];
    return banded ? [Math.min(low / 1.25, 0.4), Math.max(high * 1.4, 3)] : [low / 1.25, high * 1.4];
  }
  const linear = (low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.08 : 1];
  // Of fixed places those whose labels have room.
  function spaced(u, places) {
    const { min, max } = u.scales.x;
    const kept = [];
    let last = -Infinity;
    for (const at of places) {
      const pos = u.valToPos(at, "x");
      if (at < min || at > max || pos - last < 40) continue;
      kept.push(at);
      last = pos;
    }
    return kept;
  }

  const all = [...document.querySelectorAll(".chart")].map((figure) => new Chart(figure)).filter(({ plot }) => plot);
  const again = () => all.forEach((chart) => chart.draw());

  const button = document.getElementById("theme");
  const themed = () => {
    button.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
    button.textContent = root.dataset.theme === "dark" ? "Light" : "Dark";
    again();
  };
  button.hidden = false;
  button.addEventListener("click", () => window.toggleTheme());
  addEventListener("themechange", themed);
  addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey }) => {
    if (key === "t" && !ctrlKey && !metaKey && !altKey) window.toggleTheme();
  });
  themed();

  // Paper: light, and as wide as a sheet.
  let screen = null;
  addEventListener("beforeprint", () => {
    screen ??= root.dataset.theme;
    root.dataset.theme = "light";
    root.classList.add("paper");
    again();
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = screen;
    screen = null;
    root.classList.remove("paper");
    again();
  });
  root.dataset.charts = String(all.length);
})();

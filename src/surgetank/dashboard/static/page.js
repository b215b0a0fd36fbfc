// Joins stream, store, charts and controls. The page only reads; it has nothing to send.

import { Chart, CHARTS } from "./charts.js";
import { SECONDS, SLOTS, Store } from "./store.js";
import * as view from "./view.js";

const store = new Store();
const hidden = new Set(); // tenants by name; null: all others
let shown = null; // the store as it was when the page was paused
let range = Number(remembered("range") ?? 0); // seconds; 0: all there is, a minute at least
let hovering = false; // the pointer is over a chart: charts hold still, numbers do not
let cursor = null; // index of the sample under the cursor
let down = null; // Unix seconds since when this page's own server is gone

const find = (id) => document.getElementById(id);
const now = () => Date.now() / 1000;

const charts = CHARTS.map((spec) => new Chart(spec, find("charts"), { cursor: (index) => follow(index) }));

function remembered(key) {
  try {
    return localStorage.getItem(`surgetank.${key}`);
  } catch {
    return null;
  }
}

function remember(key, value) {
  try {
    localStorage.setItem(`surgetank.${key}`, value);
  } catch {
    // storage is off: the choice lasts as long as the page
  }
}

function frame() {
  const { samples } = shown ?? store;
  const end = samples.at(-1)?.t ?? now();
  const all = samples.length ? end - samples[0].t : 0;
  const length = range || Math.min(SECONDS, Math.max(60, all));
  return [end - length, end];
}

function render({ still = false } = {}) {
  const state = shown ?? store;
  view.banner(store.status, down);
  view.gateway(store.status);
  view.tiles(state, down);
  view.burstiness(store.status);
  view.learned(store.status);
  view.paused(shown && shown.last?.t, shown ? (store.last?.t ?? 0) - (shown.last?.t ?? 0) : 0);
  find("charts").classList.toggle("still", still || shown !== null);
  if (still) return; // an index under the cursor must not move away from it
  view.tenants(state, hiddenSlots(state), cursor, toggle);
  view.decisions(state);
  const window = frame();
  for (const chart of charts) chart.draw(state, hiddenSlots(state), window, cursor);
  document.querySelector("main").dataset.samples = String(state.samples.length);
}

// The cursor moved, in whichever chart: every legend tells that second.
function follow(index) {
  if (index === cursor) return;
  cursor = index;
  const state = shown ?? store;
  for (const chart of charts) chart.label(index ?? state.samples.length - 1);
  view.tenants(state, hiddenSlots(state), cursor, toggle);
}

// Colours change hands when another tenant rises; what is hidden goes with the name.
function hiddenSlots({ tenants }) {
  const names = [...tenants, null];
  return new Set(names.flatMap((name, slot) => ((name !== null || slot === SLOTS) && hidden.has(name) ? [slot] : [])));
}

function toggle(slot) {
  const name = slot === SLOTS ? null : (shown ?? store).tenants[slot];
  if (!hidden.delete(name)) hidden.add(name);
  render();
}

function pause() {
  shown = shown === null ? store.frozen() : null;
  render();
}

function choose(button) {
  for (const other of find("range").children) {
    other.setAttribute("aria-checked", String(other === button));
    other.tabIndex = other === button ? 0 : -1;
  }
  range = Number(button.dataset.seconds);
  remember("range", range);
  render();
}

function controls() {
  const buttons = [...find("range").children];
  choose(buttons.find(({ dataset }) => Number(dataset.seconds) === range) ?? buttons[0]);
  find("range").addEventListener("click", ({ target }) => target.dataset.seconds && choose(target));
  find("range").addEventListener("keydown", ({ key, target }) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[key];
    if (!step) return;
    const next = buttons[(buttons.indexOf(target) + step + buttons.length) % buttons.length];
    next.focus();
    choose(next);
  });
  find("pause").addEventListener("click", pause);
  find("theme").addEventListener("click", () => window.toggleTheme());
  addEventListener("themechange", themed);
  addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey }) => {
    if (ctrlKey || metaKey || altKey) return;
    if (key === "p") pause();
    if (key === "t") window.toggleTheme();
  });
  for (const { canvas } of charts) {
    canvas.addEventListener("pointerenter", ({ pointerType }) => (hovering = pointerType === "mouse"));
    canvas.addEventListener("pointerleave", () => {
      hovering = false;
      cursor = null;
      render();
    });
  }
  document.addEventListener("visibilitychange", () => document.hidden || render());
}

function themed() {
  find("theme").setAttribute("aria-pressed", String(document.documentElement.dataset.theme === "dark"));
  for (const chart of charts) chart.rebuild();
  render();
}

function listen() {
  const stream = new EventSource("stream");
  const take = (how) => ({ data }) => {
    down = null;
    how.call(store, JSON.parse(data));
    if (!document.hidden) render({ still: hovering });
  };
  stream.addEventListener("history", take(store.reset));
  stream.addEventListener("tick", take(store.append));
  stream.addEventListener("error", () => {
    down ??= now();
    render({ still: hovering });
    if (stream.readyState !== EventSource.CLOSED) return; // the browser tries again by itself
    setTimeout(listen, 1000);
  });
}

controls();
themed();
listen();

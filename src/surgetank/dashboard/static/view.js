// Everything around the charts: banner, tiles, tenants, decisions.

import { clock, compact, element, NONE, plural, rate, seconds, slope, span, words } from "./format.js";
import { SLOTS, STATES } from "./store.js";

export const STEEP = 0.3; // s/s: TTFT rising this fast means a burst outruns the fleet

const find = (id) => document.getElementById(id);

// What stands in the way of live numbers, if anything. `down`: since when the page's server is gone.
export function banner(status, down) {
  const line = find("banner");
  const text = hindrance(status, down);
  line.hidden = text === "";
  line.className = down === null ? status.state : "lost";
  if (line.textContent !== text) line.textContent = text;
}

function hindrance({ state, since, source, detail }, down) {
  if (down !== null) return `The page's own server has not answered since ${clock(down)}; it is tried again.`;
  if (state === "lost") return `Gateway unreachable since ${clock(since)}. ${detail}`;
  if (state === "connecting") return `Waiting for the first answer of ${source}.`;
  return "";
}

export function gateway({ gateway, source }) {
  find("gateway").replaceChildren(element("bdi", { text: gateway ? `${gateway} at ${source}` : source }));
}

export function tiles(store, down) {
  const live = down === null && store.status.state === "live";
  const state = live ? store.last?.state : null;
  const flows = live ? store.last?.flows : null;
  const ttft = state?.ttft ?? {};
  const steep = ttft.slope != null && ttft.slope >= STEEP;
  const all = state ? Object.values(state.replicas).reduce((a, b) => a + b, 0) : null;
  const others = state
    ? STATES.slice(1).filter((name) => state.replicas[name]).map((name) => `${state.replicas[name]} ${name}`)
    : [];
  if (state?.silent) others.push(`load of ${state.silent} unknown`);
  const [word, tone] = condition(store.status, state, down);
  find("tiles").replaceChildren(
    tile("Requests/s", rate(flows?.arrivals), state ? `${compact(state.running)} running` : ""),
    tile(
      "TTFT P95",
      seconds(ttft.p95),
      `${steep ? "▲ rising " : ""}${state ? slope(ttft.slope) : ""}`,
      steep ? "bad" : "",
    ),
    tile("Queue", compact(state?.queue), state?.queue ? `oldest ${seconds(state.queue_age)}` : ""),
    tile("Replicas serving", state ? `${state.replicas.serving ?? 0} of ${all}` : NONE, others.join(", ")),
    tile(
      "Refused/s",
      rate(flows?.refused),
      flows?.failed ? `${rate(flows.failed)} failed/s` : "",
      flows?.failed ? "bad" : flows?.refused ? "warn" : "",
    ),
    tile("Gateway", word, "", tone),
  );
}

function condition(status, state, down) {
  if (down !== null) return ["unknown", "bad"];
  if (status.state === "lost") return ["unreachable", "bad"];
  if (status.state === "connecting" || !state) return ["connecting", "warn"];
  if (state.draining) return ["draining", "warn"];
  return state.ready ? ["ready", "good"] : ["no replica ready", "bad"];
}

function tile(name, value, more, tone = "") {
  return element(
    "div",
    { className: `tile ${tone}` },
    element("span", { className: "name", text: name }),
    element("span", { className: "value", text: value }),
    element("span", { className: "more", text: more }),
  );
}

// The figures of `surgetank analyze`, of the last minutes: 1 is what independent users would give.
export function burstiness({ burstiness: found }) {
  const line = find("burstiness");
  line.hidden = !found;
  if (!found) return;
  const told = found.idc.filter(([, value]) => value !== null);
  const idc = told.map(([window, value]) => `${compact(Number(value.toPrecision(3)))} at ${window} s`).join(", ");
  const [base, peak, width, period] = found.pulse ?? [];
  const pulse = found.pulse
    ? ` Pulse: ${rate(base)} to ${rate(peak)} req/s for ${seconds(width)} of every ${seconds(period)}.`
    : "";
  const shape = found.confident ? found.shape : "too early to tell";
  const text = `Last ${span(found.seconds)}: ${shape}.${idc ? ` IDC ${idc} (1 for Poisson).` : ""}${pulse}`;
  if (line.textContent !== text) line.textContent = text;
  line.title = found.text;
}

// What the gateway has learnt of each model: its own words.
export function learned({ learned: lines = [] }) {
  find("learned").hidden = lines.length === 0;
  const list = find("lessons");
  const shown = [...list.children].map((item) => item.textContent);
  if (shown.length === lines.length && shown.every((text, i) => text === lines[i])) return;
  list.replaceChildren(...lines.map((text) => element("li", {}, element("bdi", { text }))));
}

// One button per colour: shows or hides that tenant's curves. Buttons stay, so that focus stays.
export function tenants(store, hidden, index, toggle) {
  const list = find("tenants");
  const at = store.samples[index]?.t;
  find("moment").textContent = at === undefined ? "now" : `at ${clock(at)}`;
  const sample = store.samples[index] ?? store.last;
  const spreads = new Map(sample?.state?.tenants_ttft ?? []);
  const rates = new Map(sample?.flows?.tenants ?? []);
  for (let slot = 0; slot <= SLOTS; slot += 1) {
    const item = list.children[slot] ?? list.appendChild(chip(slot, toggle));
    const name = slot === SLOTS ? "others" : store.tenants[slot];
    item.hidden = slot === SLOTS ? !store.others : name === null;
    if (item.hidden) continue;
    const [button] = item.children;
    const [, title, numbers, alarm] = button.children;
    const spread = spreads.get(name);
    const steep = spread?.slope != null && spread.slope >= STEEP;
    title.textContent = name;
    button.title = `${name}: show or hide`;
    button.setAttribute("aria-pressed", String(!hidden.has(slot)));
    alarm.textContent = steep && slot !== SLOTS ? `▲ ${slope(spread.slope)}` : "";
    numbers.textContent =
      slot === SLOTS
        ? `${rate(rest(sample, store))}/s`
        : `${rate(sample?.flows ? (rates.get(name) ?? 0) : null)}/s · P95 ${seconds(spread?.p95)}`;
  }
  list.dataset.empty = String(store.tenants.every((name) => name === null));
}

function chip(slot, toggle) {
  const key = element("i", { className: "swatch" });
  key.style.setProperty("--key", `var(${slot === SLOTS ? "--others" : `--series-${slot}`})`);
  const button = element(
    "button",
    {},
    key,
    element("bdi"),
    element("span", { className: "numbers" }),
    element("span", { className: "alarm" }),
  );
  button.type = "button";
  button.addEventListener("click", () => toggle(slot));
  return element("li", {}, button);
}

function rest(sample, store) {
  if (!sample?.flows) return null;
  const named = sample.flows.tenants.filter(([name]) => store.tenants.includes(name));
  return Math.max(0, sample.flows.arrivals - named.reduce((sum, [, value]) => sum + value, 0));
}

export function decisions(store) {
  const none = find("no-decisions");
  const { autoscaler, doubt, state } = store.status;
  none.textContent = doubt || (store.decisions.length ? "" : emptiness(autoscaler, state));
  none.hidden = none.textContent === "";
  find("decisions").hidden = store.decisions.length === 0;
  find("decisions").replaceChildren(...[...store.decisions].reverse().map(decision));
}

function emptiness(autoscaler, state) {
  if (autoscaler === false) return "No autoscaler runs in this gateway: its replicas stay as configured.";
  if (autoscaler === true) return "The autoscaler has decided nothing yet.";
  return state === "lost" ? "Unknown while the gateway is unreachable." : "Not known yet.";
}

function decision({ t, model, role, plan, before, reasons, effects, more }) {
  const pool = role && role !== "both" ? `${model} (${role})` : model;
  const was = before && before.replicas !== plan.replicas ? `${before.replicas} → ` : "";
  const head = element(
    "p",
    {},
    element("time", { text: clock(t) }),
    " ",
    element("bdi", { text: pool }),
    " ",
    element("b", { text: `${was}${plural(plan.replicas, "replica")}` }),
    `, ${plural(plan.standbys, "standby")}`,
  );
  const entry = element("li", {}, head);
  if (effects.length) {
    const done = element("p", { className: "effects" });
    for (const [verb, what] of effects) {
      done.append(element("span", { className: "effect" }, `${words(verb)} `, element("bdi", { text: what })));
    }
    if (more) done.append(`and ${more} more`);
    entry.append(done);
  }
  for (const reason of reasons) entry.append(element("p", { className: "reason" }, element("bdi", { text: reason })));
  return entry;
}

export function paused(since, waiting) {
  const button = find("pause");
  button.setAttribute("aria-pressed", String(since !== null));
  button.textContent = since === null ? "Pause" : `Resume (${span(waiting)} behind)`;
}

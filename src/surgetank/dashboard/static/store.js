// What the server sent, as columns for the charts. No DOM here.
//
// Tenants and outcomes are names from outside: they live in Maps, never as object keys.

export const SECONDS = 900;
export const SLOTS = 6; // tenants with a colour of their own; the rest are "others"
export const STATES = ["serving", "draining", "starting", "standby"];
const REASONS = 5;

export class Store {
  samples = [];
  decisions = [];
  status = { state: "connecting", since: Date.now() / 1000, source: "", detail: "", gateway: "" };
  tenants = Array(SLOTS).fill(null); // by colour slot; a tenant keeps its slot while it is on top
  others = false;
  reasons = [];

  reset({ status, samples, decisions }) {
    this.samples = [];
    this.decisions = [];
    this.append({ status, samples, decisions });
  }

  append({ status, samples, decisions }) {
    this.status = status;
    this.samples.push(...samples);
    this.samples.splice(0, Math.max(0, this.samples.length - SECONDS));
    this.decisions.push(...decisions);
    this.decisions.splice(0, Math.max(0, this.decisions.length - 100));
    this.#rank();
  }

  // A view stays as it is while the page is paused: the arrays are copied.
  frozen() {
    const copy = new Store();
    Object.assign(copy, this);
    copy.samples = [...this.samples];
    copy.decisions = [...this.decisions];
    copy.tenants = [...this.tenants];
    copy.reasons = [...this.reasons];
    return copy;
  }

  get last() {
    return this.samples.at(-1);
  }

  times() {
    return this.samples.map((s) => s.t);
  }

  column(read) {
    return this.samples.map((s) => read(s) ?? null);
  }

  // Rates per second of each slot, then of all other tenants; null where they are unknown.
  arrivals() {
    const slots = new Map(this.tenants.map((name, slot) => [name, slot]));
    const columns = Array.from({ length: SLOTS + 1 }, () => Array(this.samples.length).fill(null));
    this.samples.forEach(({ flows }, i) => {
      if (!flows) return;
      for (const column of columns) column[i] = 0;
      for (const [name, rate] of flows.tenants) columns[slots.get(name) ?? SLOTS][i] += rate;
      columns[SLOTS][i] += flows.others;
    });
    return columns;
  }

  // P50 and P95 of each slot's times to first token, in seconds.
  firstTokens() {
    const slots = new Map(this.tenants.map((name, slot) => [name, slot]));
    const columns = this.tenants.map(() => ({
      p50: Array(this.samples.length).fill(null),
      p95: Array(this.samples.length).fill(null),
    }));
    this.samples.forEach(({ state }, i) => {
      for (const [name, spread] of state?.tenants_ttft ?? []) {
        const slot = slots.get(name);
        if (slot === undefined) continue;
        columns[slot].p50[i] = spread.p50;
        columns[slot].p95[i] = spread.p95;
      }
    });
    return columns;
  }

  // Single first tokens as [Unix seconds, TTFT in seconds, slot]; slot SLOTS is "others".
  points(hidden) {
    const slots = new Map(this.tenants.map((name, slot) => [name, slot]));
    const found = [];
    for (const { points } of this.samples) {
      for (const [t, seconds, name] of points) {
        const slot = slots.get(name) ?? SLOTS;
        if (!hidden.has(slot)) found.push([t, seconds, slot]);
      }
    }
    return found;
  }

  refusals() {
    const rows = new Map(this.reasons.map((name, row) => [name, row]));
    const columns = this.reasons.map(() => Array(this.samples.length).fill(null));
    const rest = rows.get(null);
    this.samples.forEach(({ flows }, i) => {
      if (!flows) return;
      for (const column of columns) column[i] = 0;
      for (const [name, rate] of flows.reasons) columns[rows.get(name) ?? rest][i] += rate;
    });
    return columns;
  }

  replicas() {
    return [...STATES, null].map((name) =>
      this.column(({ state }) => {
        if (!state) return null;
        if (name !== null) return state.replicas[name] ?? 0;
        return sum(Object.entries(state.replicas).filter(([other]) => !STATES.includes(other)));
      }),
    );
  }

  // Who gets a colour: the six with the most requests in the time kept.
  #rank() {
    const offered = totals(this.samples, (s) => s.flows?.tenants);
    for (const { state } of this.samples) {
      for (const [name] of state?.tenants_ttft ?? []) if (!offered.has(name)) offered.set(name, 0);
    }
    const top = ranked(offered).slice(0, SLOTS);
    const kept = this.tenants.map((name) => (top.includes(name) ? name : null));
    const fresh = top.filter((name) => !kept.includes(name));
    this.tenants = kept.map((name) => name ?? fresh.shift() ?? null);
    this.others = offered.size > SLOTS;

    const ended = ranked(totals(this.samples, (s) => s.flows?.reasons));
    const named = ended.slice(0, REASONS).sort();
    this.reasons = ended.length > REASONS ? [...named, null] : named;
  }
}

function totals(samples, read) {
  const found = new Map();
  for (const sample of samples) {
    for (const [name, rate] of read(sample) ?? []) found.set(name, (found.get(name) ?? 0) + rate);
  }
  return found;
}

function ranked(found) {
  return [...found].sort(([a, x], [b, y]) => y - x || (a < b ? -1 : 1)).map(([name]) => name);
}

function sum(entries) {
  return entries.reduce((total, [, value]) => total + value, 0);
}

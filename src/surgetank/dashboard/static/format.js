// Numbers, times and names as people read them.

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NONE = "–";

export const clock = (t) => CLOCK.format(t * 1000);
export const compact = (value) =>
  value == null ? NONE : value < 10 ? String(Number(value.toFixed(2))) : COMPACT.format(value);
export const rate = (value) => (value == null ? NONE : value.toFixed(value < 9.95 ? 1 : 0));

export function seconds(value) {
  if (value == null) return NONE;
  return value < 10 ? `${value.toFixed(2)} s` : `${value.toFixed(1)} s`;
}

export function slope(value) {
  if (value == null) return "slope unknown";
  const size = Math.abs(value).toFixed(2);
  return `${size === "0.00" ? "±" : value < 0 ? "−" : "+"}${size} s/s`;
}

export function span(value) {
  const whole = Math.max(0, Math.round(value));
  if (whole < 90) return `${whole} s`;
  return whole < 5400 ? `${Math.round(whole / 60)} min` : `${(whole / 3600).toFixed(1)} h`;
}

export const words = (name) => name.replaceAll("_", " ");
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// An element whose text can be anything: it is set as text, in its own direction.
export function element(tag, { className = "", text = null } = {}, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  made.append(...children);
  return made;
}

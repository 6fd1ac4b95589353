/** Numbers, durations, bytes and times as text, in English; and texts as files. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const time = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 12,345; below 100 with a tenth: 12.3. */
export function number(value) {
  return (Math.abs(value) < 100 ? tenths : whole).format(value);
}

/** 1 step, 2 steps. */
export function counted(count, noun) {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** 0.42 is 42%. */
export function percent(share) {
  return `${number(share * 100)}%`;
}

/** 1536 is 1.5 KiB. */
export function bytes(count) {
  let unit = 0;
  for (; count >= 1024 && unit < UNITS.length - 1; unit++) count /= 1024;
  return `${number(count)} ${UNITS[unit]}`;
}

/** Seconds as 850 µs, 12.3 ms, 4.2 s, 3 min 20 s or 2 h 5 min. */
export function duration(seconds) {
  if (seconds < 1e-3) return `${number(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3)} ms`;
  if (seconds < 60) return `${number(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Nanoseconds of a message, which leaves them out if they are 0. */
export function secondsOf(nanoseconds = 0) {
  return Number(nanoseconds) / 1e9;
}

/** Time of the day of a Date or of milliseconds since 1970. */
export function clock(when) {
  return time.format(when);
}

/** Day and time. */
export function date(when) {
  return day.format(when);
}

/** Gives the user a file of JSON. */
export function saveJson(name, text) {
  const href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  Object.assign(document.createElement("a"), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

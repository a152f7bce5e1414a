// Numbers, times and sizes in few characters, for people.

const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
];

/** Seconds as the two units that matter: 2 h 5 min, 3.4 s, 12 ms. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  const sign = seconds < 0 ? "−" : "";
  let left = Math.abs(seconds);
  if (left < 1) return left === 0 ? "0 s" : `${sign}${short(left * 1000, 3)} ms`;
  if (left < 60) return `${sign}${short(left, left < 10 ? 2 : 3)} s`;
  left = Math.round(left);
  for (const [at, [unit, size]] of UNITS.entries()) {
    if (left < size) continue;
    const whole = Math.floor(left / size);
    const [nextUnit, nextSize] = UNITS[at + 1] ?? ["s", 1];
    const rest = Math.floor((left - whole * size) / nextSize);
    return `${sign}${whole} ${unit}${rest ? ` ${rest} ${nextUnit}` : ""}`;
  }
  return `${sign}${left} s`;
}

/** A number with so many digits that count, no more. */
export function short(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-4) return value.toExponential(Math.max(0, digits - 1));
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return minus(Number(value.toFixed(Math.min(decimals, 12))));
}

/** A count with its thousands set apart. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return minus(Math.round(value));
}

function minus(value) {
  return value.toLocaleString("en-US", { maximumFractionDigits: 12 }).replace("-", "−");
}

/** A count in thousands or millions where it is long. */
export function compact(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${short(value / 1e9)}G`;
  if (size >= 1e6) return `${short(value / 1e6)}M`;
  if (size >= 1e4) return `${short(value / 1e3)}k`;
  return Number.isInteger(value) ? count(value) : short(value);
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let left = value;
  while (left >= 1024 && at < names.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${at ? short(left) : count(left)} ${names[at]}`;
}

export function share(value) {
  return value === null || value === undefined ? "–" : `${short(value * 100, 3)} %`;
}

/** A moment of the calendar, from seconds since the epoch. */
export function calendar(seconds) {
  if (!seconds) return "–";
  return new Date(seconds * 1000).toLocaleString("sv-SE");
}

/** What there is of these, in one line. */
export function joined(parts, by = ", ") {
  return parts.filter(Boolean).join(by);
}

/** One thing, or many of it. */
export function many(number, one, more = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : more}`;
}

// From values to pixels and back, and the round numbers that stand along an axis.

/** A linear scale; without an extent everything is in its middle. */
export function linear([low, high], [start, end]) {
  const span = high - low;
  const scale = (value) =>
    span === 0 ? (start + end) / 2 : start + ((value - low) / span) * (end - start);
  scale.invert = (pixel) => (end === start ? low : low + ((pixel - start) / (end - start)) * span);
  scale.domain = [low, high];
  scale.range = [start, end];
  return scale;
}

const STEPS = [1, 2, 5, 10];
const TIME_STEPS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
  1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
];

function stepFor(span, most) {
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  return STEPS.map((one) => one * power).find((one) => one >= rough * (1 - 1e-9));
}

function along(low, high, step) {
  const found = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let at = first; at * step <= high + step * 1e-9; at += 1) {
    // Multiplied rather than added up, so that 0.1 stays 0.1.
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}

/** Round values within an extent, at most so many and a few. */
export function ticks([low, high], most = 5) {
  if (!(high > low)) return [low];
  return along(low, high, stepFor(high - low, most));
}

/** The same in steps of whole seconds, minutes, hours or days. */
export function timeTicks([low, high], most = 6) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, most);
  const step = TIME_STEPS.find((one) => one >= rough) ?? stepFor(high - low, most);
  return along(low, high, step);
}

/** Whole numbers only, for steps, versions and counts. */
export function wholeTicks([low, high], most = 5) {
  if (!(high > low)) return [low];
  return along(low, high, Math.max(1, stepFor(high - low, most)));
}

/** The extent of all numbers in several lists; null ones are passed over. */
export function extent(lists, { zero = false, least = null } = {}) {
  let low = zero ? 0 : Infinity;
  let high = zero ? 0 : -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === null || value === undefined || !Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) [low, high] = [0, 1];
  if (least !== null) high = Math.max(high, least);
  // One value alone stands in the middle, or on the ground where there is one.
  if (low === high && low === 0) high = 1;
  else if (low === high) [low, high] = [low - Math.abs(low) / 10, high + Math.abs(low) / 10];
  return [low, high];
}

/** Where in a sorted list the last value stands that is not above this one; -1 before the first. */
export function lastAtMost(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

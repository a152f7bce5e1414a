// Axes of a drawing: where it stands in its canvas, and the lines and numbers along it.

import { colour } from "./colours.js";
import { duration, short } from "./format.js";
import { linear, ticks, timeTicks, wholeTicks } from "./scale.js";

export const FONT = "12px system-ui, sans-serif";
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 14;

const TICKS = { time: timeTicks, whole: wholeTicks, value: ticks };

export function ticksOf(kind, domain, most) {
  return (TICKS[kind] ?? ticks)(domain, most);
}

/** How wide the widest of these texts is. */
export function widest(context, texts) {
  context.font = FONT;
  return Math.max(0, ...texts.map((text) => context.measureText(text).width));
}

/** Both scales of a drawing, its axes drawn; `left` is given where several stand in a column. */
export function axes(context, { width, height, x, y, left = null }) {
  const format = y.format ?? ((value) => short(value));
  const yTicks = ticksOf(y.kind ?? "value", y.domain, Math.max(2, Math.floor(height / 40)));
  const start = left ?? Math.ceil(widest(context, yTicks.map(format))) + 10;
  const area = { left: start, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
  const yScale = linear(y.domain, [area.bottom, area.top]);
  context.font = FONT;
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of yTicks) {
    const at = Math.round(yScale(value)) + 0.5;
    context.strokeStyle = colour("grid");
    context.beginPath();
    context.moveTo(area.left, at);
    context.lineTo(area.right, at);
    context.stroke();
    context.fillStyle = colour("ink-2");
    context.fillText(format(value), area.left - 6, at);
  }
  return { area, x: xAxis(context, area, x), y: yScale };
}

/** The scale along the bottom, drawn; a `label` at its end says what is counted. */
export function xAxis(context, area, { domain, kind = "time", format = null, label = null }) {
  const scale = linear(domain, [area.left, area.right]);
  const say = format ?? (kind === "time" ? duration : (value) => short(value, 4));
  context.font = FONT;
  context.textBaseline = "alphabetic";
  context.fillStyle = colour("ink-2");
  context.strokeStyle = colour("axis");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(area.left, area.bottom + 0.5);
  context.lineTo(area.right, area.bottom + 0.5);
  let free = -Infinity;
  let end = area.right + RIGHT;
  if (label !== null) {
    context.textAlign = "right";
    context.fillText(label, end - 2, area.bottom + 16);
    end -= context.measureText(label).width + 10;
  }
  for (const value of ticksOf(
    kind,
    domain,
    Math.max(2, Math.floor((area.right - area.left) / 90)),
  )) {
    const at = Math.round(scale(value)) + 0.5;
    const text = say(value);
    const half = context.measureText(text).width / 2;
    const middle = Math.min(Math.max(at, area.left + half - 8), area.right + 12 - half);
    const isOver = label !== null && middle + half > end;
    context.moveTo(at, area.bottom);
    context.lineTo(at, area.bottom + 4);
    if (middle - half < free || isOver) continue;
    free = middle + half + 8;
    context.textAlign = "center";
    context.fillText(text, middle, area.bottom + 16);
  }
  context.stroke();
  return scale;
}

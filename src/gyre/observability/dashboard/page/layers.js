// What a plot is made of: lines, steps, slopes, stacks, levels, marks, dots with their errors.

import { colour, filling } from "./colours.js";
import { lastAtMost } from "./scale.js";

/** Draws one layer between the scales of a plot. */
export function drawLayer(context, layer, scales) {
  const { area } = scales;
  context.save();
  context.beginPath();
  context.rect(area.left, area.top - 2, area.right - area.left, area.bottom - area.top + 3);
  context.clip();
  DRAWN[layer.kind](context, layer, scales);
  context.restore();
}

const DRAWN = { line, steps, area: filled, slope, stack, level, marks, dots, errors };

function stroke(context, { word, width = 1.75, dash = [] }) {
  context.strokeStyle = colour(word);
  context.lineWidth = width;
  context.setLineDash(dash);
  context.lineJoin = "round";
}

function line(context, layer, { x, y }) {
  stroke(context, layer);
  context.beginPath();
  let isOpen = false;
  layer.xs.forEach((value, at) => {
    const height = layer.ys[at];
    if (height === null || height === undefined) {
      isOpen = false;
      return;
    }
    if (isOpen) context.lineTo(x(value), y(height));
    else context.moveTo(x(value), y(height));
    isOpen = true;
  });
  context.stroke();
  if (layer.xs.length <= 60) dots(context, { ...layer, size: 2.5 }, { x, y });
}

/** A value holds until the next row, the last one as far as anything is known. */
function stepPath(context, xs, ys, { x, y, until }) {
  let before = null;
  xs.forEach((value, at) => {
    const height = ys[at];
    if (height === null || height === undefined) {
      before = null;
      return;
    }
    if (before === null) context.moveTo(x(value), y(height));
    else {
      context.lineTo(x(value), before);
      context.lineTo(x(value), y(height));
    }
    before = y(height);
  });
  if (before !== null) context.lineTo(x(until), before);
}

function steps(context, layer, scales) {
  stroke(context, layer);
  context.beginPath();
  stepPath(context, layer.xs, layer.ys, scales);
  context.stroke();
}

function filled(context, layer, scales) {
  const { x, y, until } = scales;
  if (layer.xs.length === 0) return;
  context.globalAlpha = 0.22;
  context.fillStyle = colour(layer.word);
  context.beginPath();
  stepPath(context, layer.xs, layer.ys, scales);
  context.lineTo(x(until), y(0));
  context.lineTo(x(layer.xs[0]), y(0));
  context.fill();
  context.globalAlpha = 1;
  steps(context, layer, scales);
}

/** The area under a line from corner to corner. */
function slope(context, layer, { x, y }) {
  if (layer.xs.length === 0) return;
  const path = () => {
    context.beginPath();
    layer.xs.forEach((value, at) => context.lineTo(x(value), y(layer.ys[at])));
  };
  path();
  stroke(context, layer);
  context.stroke();
  path();
  context.lineTo(x(layer.xs.at(-1)), y(0));
  context.lineTo(x(layer.xs[0]), y(0));
  context.globalAlpha = 0.22;
  context.fillStyle = colour(layer.word);
  context.fill();
}

/** Areas upon one another; each row holds until the next. */
function stack(context, { xs, parts }, scales) {
  const { x, y, until } = scales;
  if (xs.length === 0) return;
  const below = xs.map(() => 0);
  for (const part of parts) {
    const above = below.map((height, at) => height + (part.ys[at] ?? 0));
    context.fillStyle = filling(context, part.word);
    context.beginPath();
    stepPath(context, xs, above, scales);
    for (let at = xs.length - 1; at >= 0; at -= 1) {
      context.lineTo(x(at === xs.length - 1 ? until : xs[at + 1]), y(below[at]));
      context.lineTo(x(xs[at]), y(below[at]));
    }
    context.fill();
    above.forEach((height, at) => {
      below[at] = height;
    });
  }
}

function level(context, layer, { y, area }) {
  stroke(context, { dash: [6, 4], width: 1.5, ...layer });
  const at = Math.round(y(layer.y)) + 0.5;
  context.beginPath();
  context.moveTo(area.left, at);
  context.lineTo(area.right, at);
  context.stroke();
}

function marks(context, layer, { x, area }) {
  stroke(context, { width: 1, ...layer });
  context.globalAlpha = layer.alpha ?? 0.6;
  context.beginPath();
  for (const value of layer.xs) {
    const at = Math.round(x(value)) + 0.5;
    context.moveTo(at, area.top);
    context.lineTo(at, area.bottom);
  }
  context.stroke();
}

function dots(context, layer, { x, y }) {
  context.fillStyle = colour(layer.word);
  layer.xs.forEach((value, at) => {
    const height = layer.ys[at];
    if (height === null || height === undefined) return;
    context.beginPath();
    context.arc(x(value), y(height), layer.size ?? 3.5, 0, 2 * Math.PI);
    context.fill();
  });
}

function errors(context, layer, scales) {
  const { x, y } = scales;
  stroke(context, { ...layer, width: 1.5 });
  context.beginPath();
  layer.xs.forEach((value, at) => {
    const [height, spread] = [layer.ys[at], layer.errors[at]];
    if (height === null || spread === null || spread === undefined) return;
    const [low, high] = [y(height - spread), y(height + spread)];
    context.moveTo(x(value), low);
    context.lineTo(x(value), high);
    for (const end of [low, high]) {
      context.moveTo(x(value) - 3, end);
      context.lineTo(x(value) + 3, end);
    }
  });
  context.stroke();
  line(context, layer, scales);
}

const HELD = new Set(["steps", "area", "slope", "stack"]);

/**
 * What the layers say at a place: triples of a name, a number and how it is written.
 *
 * Steps hold until the next, slopes go there; of points only those that are no further than `near`
 * say anything.
 */
export function valuesAt(layers, place, near) {
  const choose = ({ kind, xs }) => {
    // A pixel as a time is rounded, and what begins there has begun.
    if (HELD.has(kind)) return lastAtMost(xs, place + near * 1e-6);
    const at = nearest(xs, place);
    return at >= 0 && Math.abs(xs[at] - place) <= near ? at : -1;
  };
  return said(layers, choose, place);
}

/** On the way from one corner of a slope to the next; at the corner without a place. */
function between({ xs, ys }, at, place) {
  const way = (xs[at + 1] ?? xs[at]) - xs[at];
  if (place === null || way <= 0) return ys[at];
  return ys[at] + ((ys[at + 1] - ys[at]) * Math.max(0, place - xs[at])) / way;
}

/** What each layer says last. */
export function lastValues(layers) {
  return said(layers, ({ xs, ys }) => {
    let at = xs.length - 1;
    while (ys && at >= 0 && (ys[at] === null || ys[at] === undefined)) at -= 1;
    return at;
  });
}

function said(layers, choose, place = null) {
  const found = [];
  const add = (name, value, format) => {
    if (value !== null && value !== undefined) found.push([name, value, format]);
  };
  for (const layer of layers) {
    if (layer.kind === "level" || layer.kind === "marks") continue;
    const at = choose(layer);
    if (at < 0) continue;
    if (layer.kind === "stack")
      for (const part of layer.parts) add(part.name, part.ys[at], layer.format);
    else if (layer.kind === "slope") add(layer.name, between(layer, at, place), layer.format);
    else add(layer.name, layer.ys[at], layer.format);
  }
  return found;
}

/** Where in a sorted list the value stands that is nearest; -1 in an empty one. */
export function nearest(sorted, value) {
  const at = lastAtMost(sorted, value);
  if (at < 0) return sorted.length ? 0 : -1;
  const isNext = at + 1 < sorted.length && sorted[at + 1] - value < value - sorted[at];
  return isNext ? at + 1 : at;
}

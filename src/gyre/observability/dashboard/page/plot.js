// A plot: layers over one pair of axes, with a legend, a readout and a table.

import { axes } from "./axes.js";
import { colour } from "./colours.js";
import { Figure } from "./figure.js";
import { duration, short } from "./format.js";
import { drawLayer, lastValues, nearest, valuesAt } from "./layers.js";
import { extent, linear } from "./scale.js";

const MOST_PLACES = 400;
const NEAR = 4;
/** Pixels within which a point is meant. */

export class Plot {
  #shown = null;
  #left = 0;
  #right = 0;

  constructor({
    title,
    note,
    height = 180,
    x = "time",
    xLabel = null,
    yFormat = null,
    yKind = "value",
    zero = true,
    onPick = null,
    onSpan = null,
  }) {
    this.kind = x;
    this.label = xLabel ?? (x === "whole" ? "step" : null);
    this.yFormat = yFormat ?? ((value) => short(value));
    this.yKind = yKind;
    this.zero = zero;
    this.figure = new Figure({ title, note, height, isTime: x === "time" });
    this.title = title;
    this.figure.draw = (context, width, height_) => this.#draw(context, width, height_);
    this.figure.read = (x_, at) => this.#read(x_, at);
    this.figure.places = () => this.#places();
    this.figure.domain = () => this.#shown?.x ?? null;
    this.figure.onPick = x === "time" ? onPick : null;
    this.figure.onSpan = x === "time" ? onSpan : null;
  }

  get element() {
    return this.figure.element;
  }

  close() {
    this.figure.close();
  }

  /** What is drawn from now on, known `until` then; `y` is given where plots share one scale. */
  show({ layers, x, until = x[1], y = null, table, describe = null }) {
    const domain = y ?? extent(layers.flatMap(heights), { zero: this.zero });
    this.#shown = { layers, x, until, y: padded(domain, this.zero) };
    this.figure.showLegend(layers.flatMap(legendOf));
    this.figure.describe(describe ?? `${this.title}. ${this.#last()}`);
    if (table) this.figure.behind.show(table);
    this.figure.redraw();
  }

  #last() {
    const values = lastValues(this.#shown.layers);
    return values.length ? `At the end: ${this.#said(values)}` : "Nothing to show yet.";
  }

  #said(values) {
    return values
      .map(([name, value, format]) => `${name} ${(format ?? this.yFormat)(value)}`)
      .join(", ");
  }

  #draw(context, width, height) {
    if (!this.#shown) return;
    const { layers, x, y, until } = this.#shown;
    const scales = axes(context, {
      width,
      height,
      x: { domain: x, kind: this.kind, label: this.label },
      y: { domain: y, format: this.yFormat, kind: this.yKind },
    });
    [this.#left, this.#right] = [scales.area.left, scales.area.right];
    if (lastValues(layers).length === 0) unsaid(context, scales.area);
    for (const layer of layers) drawLayer(context, layer, { ...scales, until });
  }

  #scale() {
    return linear(this.#shown.x, [this.#left, this.#right]);
  }

  #read(pixel, time) {
    if (!this.#shown || this.#right <= this.#left) return null;
    const scale = this.#scale();
    let at = time ?? scale.invert(Math.min(Math.max(pixel, this.#left), this.#right));
    if (at < this.#shown.x[0] || at > this.#shown.x[1]) return null;
    if (this.kind === "time" && at > this.#shown.until)
      return { x: scale(at), at, text: `at ${duration(at)}` };
    if (this.kind !== "time") at = this.#snapped(at);
    const near = this.kind === "time" ? Math.abs(scale.invert(NEAR) - scale.invert(0)) : 1e-9;
    const values = valuesAt(this.#shown.layers, at, near);
    const where =
      this.kind === "time"
        ? `at ${duration(at)}`
        : `${this.label ?? "at"} ${short(at, 6)}`;
    return { x: scale(at), at, text: values.length ? `${where}: ${this.#said(values)}` : where };
  }

  /** The nearest place where there is something, because between steps there is nothing. */
  #snapped(at) {
    let best = at;
    let least = Infinity;
    for (const { xs = [] } of this.#shown.layers) {
      const found = nearest(xs, at);
      if (found >= 0 && Math.abs(xs[found] - at) < least) {
        least = Math.abs(xs[found] - at);
        best = xs[found];
      }
    }
    return best;
  }

  #places() {
    if (!this.#shown) return [];
    const [low, high] = this.#shown.x;
    const places = new Set();
    for (const { xs = [] } of this.#shown.layers)
      for (const value of xs) if (value >= low && value <= high) places.add(value);
    const sorted = [...places].sort((one, other) => one - other);
    const stride = Math.ceil(sorted.length / MOST_PLACES);
    const scale = this.#scale();
    return sorted.filter((_, at) => at % stride === 0).map(scale);
  }
}

/** What stands where there is nothing to draw. */
function unsaid(context, area) {
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = colour("ink-2");
  context.fillText("nothing yet", (area.left + area.right) / 2, (area.top + area.bottom) / 2);
}

/** Every height a layer reaches, for the extent of the plot. */
function heights(layer) {
  if (layer.kind === "marks") return [];
  if (layer.kind === "level") return [[layer.y]];
  if (layer.kind === "stack")
    return [
      layer.xs.map((_, at) => layer.parts.reduce((sum, part) => sum + (part.ys[at] ?? 0), 0)),
    ];
  if (layer.kind === "errors") {
    const spread = (sign) =>
      layer.ys.map((value, at) => (value === null ? null : value + sign * (layer.errors[at] ?? 0)));
    return [spread(1), spread(-1)];
  }
  return [layer.ys];
}

function padded([low, high], zero) {
  const room = (high - low) * 0.05;
  return [zero && low === 0 ? 0 : low - room, high + room];
}

const LINES = new Set(["line", "steps", "level", "marks", "errors"]);

function legendOf(layer) {
  if (layer.kind === "stack") return layer.parts.map(({ name, word }) => ({ name, word }));
  if (!layer.name) return [];
  const kind = LINES.has(layer.kind)
    ? layer.dash?.length || layer.kind === "level"
      ? "line dashed"
      : "line"
    : "area";
  return [{ name: layer.name, word: layer.word, kind }];
}

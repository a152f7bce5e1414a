// Who did what when: a row for each cell, coloured by state, with steps and whatever happened.

import { widest, xAxis } from "./axes.js";
import { colour, filling, ground } from "./colours.js";
import { Figure } from "./figure.js";
import { duration, joined, share, short } from "./format.js";
import { lastAtMost, linear } from "./scale.js";

const ROW = 18;
const GAP = 4;
const SHARES = 64;
const NEAR = 4;
/** Pixels within which a mark is meant. */
const LANE = "run";
const SIGNS = { fault: "▼", checkpoint: "◆" };

/** The state of a row at a time, as its span [start, end, state]; null where it has none. */
export function spanAt(spans, at) {
  const found = lastAtMost(
    spans.map((span) => span[0]),
    at,
  );
  return found >= 0 && at <= spans[found][1] ? spans[found] : null;
}

export class Timeline {
  #shown = null;
  #area = null;

  constructor({ title, note, onPick, onSpan }) {
    this.title = title;
    this.figure = new Figure({ title, note, isTime: true });
    this.figure.draw = (context, width, height) => this.#draw(context, width, height);
    this.figure.read = (x, at) => this.#read(x, at);
    this.figure.places = () => this.#places();
    this.figure.domain = () => this.#shown?.x ?? null;
    this.figure.onPick = onPick;
    this.figure.onSpan = onSpan;
  }

  get element() {
    return this.figure.element;
  }

  close() {
    this.figure.close();
  }

  /**
   * `rows` are { name, spans, share }; `steps` and `publications` are times; `marks` are
   * { at, row, kind, text } of a row, or of none and then in a lane below all of them.
   */
  show({ rows, states, x, steps = [], publications = [], marks = [] }) {
    const lane = marks.some((mark) => mark.row === null) ? 1 : 0;
    this.#shown = { rows, x, steps, publications, marks, lane };
    const used = new Set(rows.flatMap((row) => row.spans.map((span) => span[2])));
    this.figure.setHeight((rows.length + lane) * (ROW + GAP) + 34);
    this.figure.showLegend([
      ...states.filter((state) => used.has(state)).map((state) => ({ name: state, word: state })),
      ...(steps.length ? [{ name: "step", word: "step", kind: "line" }] : []),
      ...(publications.length
        ? [{ name: "publication", word: "publication", kind: "line dashed" }]
        : []),
      ...Object.entries(SIGNS)
        .filter(([kind]) => marks.some((mark) => mark.kind === kind))
        .map(([kind, sign]) => ({ name: kind, word: kind, kind: "sign", sign })),
    ]);
    this.figure.describe(`${this.title}. ${rows.map(said).join("; ")}`);
    this.figure.behind.show(() => table(rows));
    this.figure.redraw();
  }

  #draw(context, width, height) {
    if (!this.#shown) return;
    const { rows, x, steps, publications, marks, lane } = this.#shown;
    const names = rows.map((row) => row.name);
    const left = Math.ceil(widest(context, lane ? [...names, LANE] : names)) + 10;
    const area = { left, right: width - SHARES, top: 4, bottom: height - 20 };
    this.#area = area;
    const scale = xAxis(context, area, { domain: x });
    rows.forEach((row, at) => this.#row(context, row, area.top + at * (ROW + GAP), scale));
    this.#lines(context, steps, scale, [], "step");
    this.#lines(context, publications, scale, [4, 3], "publication");
    if (lane) this.#named(context, LANE, area.top + rows.length * (ROW + GAP));
    for (const mark of marks) this.#mark(context, mark, scale);
  }

  #named(context, name, top) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colour("ink");
    context.fillText(name, this.#area.left - 6, top + ROW / 2);
  }

  /** A sign that stands out from whatever is beneath it. */
  #mark(context, { at, row, kind }, scale) {
    const { left, right, top } = this.#area;
    const place = scale(at);
    if (place < left || place > right) return;
    const middle = top + (row ?? this.#shown.rows.length) * (ROW + GAP) + ROW / 2;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeStyle = ground();
    context.fillStyle = colour(kind);
    context.strokeText(SIGNS[kind], place, middle);
    context.fillText(SIGNS[kind], place, middle);
  }

  #row(context, row, top, scale) {
    const { left, right } = this.#area;
    this.#named(context, row.name, top);
    for (const [start, end, state] of row.spans) {
      const from = Math.max(left, scale(start));
      const to = Math.min(right, scale(end));
      if (to <= left || from >= right) continue;
      context.fillStyle = filling(context, state);
      context.fillRect(from, top, Math.max(0.5, to - from), ROW);
    }
    if (row.share === null) return;
    context.textAlign = "left";
    context.fillStyle = colour("grid");
    context.fillRect(right + 8, top, SHARES - 14, ROW);
    context.fillStyle = colour("training");
    context.fillRect(right + 8, top + ROW - 4, (SHARES - 14) * row.share, 4);
    context.fillStyle = colour("ink");
    context.fillText(`${short(row.share * 100, 2)} %`, right + 10, top + ROW / 2 - 2);
  }

  #lines(context, times, scale, dash, word) {
    const { left, right, top, bottom } = this.#area;
    context.strokeStyle = colour(word);
    context.lineWidth = 1;
    context.setLineDash(dash);
    context.globalAlpha = 0.6;
    context.beginPath();
    for (const time of times) {
      const at = Math.round(scale(time)) + 0.5;
      if (at < left || at > right) continue;
      context.moveTo(at, top - 2);
      context.lineTo(at, bottom);
    }
    context.stroke();
    context.globalAlpha = 1;
    context.setLineDash([]);
  }

  #scale() {
    return linear(this.#shown.x, [this.#area.left, this.#area.right]);
  }

  #read(pixel, time) {
    if (!this.#shown || !this.#area) return null;
    const scale = this.#scale();
    const at = time ?? scale.invert(Math.min(Math.max(pixel, this.#area.left), this.#area.right));
    if (at < this.#shown.x[0] || at > this.#shown.x[1]) return null;
    const near = Math.abs(scale.invert(NEAR) - scale.invert(0));
    // A pixel as a time is rounded, and what begins there has begun.
    const then = Math.min(at + near * 1e-6, this.#shown.x[1]);
    const state = (row) => (spanAt(row.spans, then) ?? spanAt(row.spans, at))?.[2] ?? "–";
    const said = this.#shown.rows.map((row) => `${row.name} ${state(row)}`);
    const marks = this.#shown.marks.filter((mark) => Math.abs(mark.at - at) <= near);
    const happened = marks.map((mark) => mark.text).join("; ");
    const text = joined([`at ${duration(at)}: ${said.join(", ")}`, happened], "; ");
    return { x: scale(at), at, text };
  }

  #places() {
    if (!this.#shown || !this.#area) return [];
    const [low, high] = this.#shown.x;
    const changes = new Set([
      ...this.#shown.rows.flatMap((row) => row.spans.map((span) => span[0])),
      ...this.#shown.marks.map((mark) => mark.at),
    ]);
    const scale = this.#scale();
    return [...changes]
      .filter((at) => at >= low && at <= high)
      .sort((one, other) => one - other)
      .map(scale);
  }
}

/** What a row does last, and how much of its time it trained. */
function said({ name, spans, share: part }) {
  const trained = part === null ? null : `${share(part)} of its time in training`;
  return joined([`${name}: ${spans.at(-1)?.[2] ?? "nothing yet"}`, trained]);
}

function table(rows) {
  const found = rows.flatMap((row) =>
    row.spans.map(([start, end, state]) => [start, row.name, state, end]),
  );
  found.sort((one, other) => one[0] - other[0]);
  return {
    head: ["from", "until", "for", "who", "state"],
    rows: found.map(([start, name, state, end]) => [
      duration(start),
      duration(end),
      duration(end - start),
      name,
      state,
    ]),
    numbers: [0, 1, 2],
  };
}

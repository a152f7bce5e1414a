// Who did what when: a row for each cell, coloured by state, with steps and publications.

import { widest, xAxis } from "./axes.js";
import { colour, filling } from "./colours.js";
import { Figure } from "./figure.js";
import { duration, joined, share } from "./format.js";
import { lastAtMost, linear } from "./scale.js";

const ROW = 18;
const GAP = 4;
const SHARES = 64;

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

  /** `rows` are { name, spans, share }; `steps` and `publications` are times. */
  show({ rows, states, x, steps = [], publications = [] }) {
    this.#shown = { rows, x, steps, publications };
    const used = new Set(rows.flatMap((row) => row.spans.map((span) => span[2])));
    this.figure.setHeight(rows.length * (ROW + GAP) + 34);
    this.figure.showLegend([
      ...states.filter((state) => used.has(state)).map((state) => ({ name: state, word: state })),
      ...(steps.length ? [{ name: "step", word: "step", kind: "line" }] : []),
      ...(publications.length
        ? [{ name: "publication", word: "publication", kind: "line dashed" }]
        : []),
    ]);
    this.figure.describe(`${this.title}. ${rows.map(said).join("; ")}`);
    this.figure.behind.show(() => table(rows));
    this.figure.redraw();
  }

  #draw(context, width, height) {
    if (!this.#shown) return;
    const { rows, x, steps, publications } = this.#shown;
    const left =
      Math.ceil(
        widest(
          context,
          rows.map((row) => row.name),
        ),
      ) + 10;
    const area = { left, right: width - SHARES, top: 4, bottom: height - 20 };
    this.#area = area;
    const scale = xAxis(context, area, { domain: x });
    rows.forEach((row, at) => this.#row(context, row, area.top + at * (ROW + GAP), scale));
    this.#marks(context, steps, scale, [], "step");
    this.#marks(context, publications, scale, [4, 3], "publication");
  }

  #row(context, row, top, scale) {
    const { left, right } = this.#area;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colour("ink");
    context.fillText(row.name, left - 6, top + ROW / 2);
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
    context.fillText(share(row.share), right + 10, top + ROW / 2 - 2);
  }

  #marks(context, times, scale, dash, word) {
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
    const said = this.#shown.rows.map((row) => `${row.name} ${spanAt(row.spans, at)?.[2] ?? "–"}`);
    return { x: scale(at), at, text: `at ${duration(at)}: ${said.join(", ")}` };
  }

  #places() {
    if (!this.#shown || !this.#area) return [];
    const [low, high] = this.#shown.x;
    const changes = new Set(this.#shown.rows.flatMap((row) => row.spans.map((span) => span[0])));
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

// Counts by bin as bars upon one another, with what was expected as a line over them.

import { axes } from "./axes.js";
import { colour, filling } from "./colours.js";
import { Figure } from "./figure.js";
import { count, joined, share, short } from "./format.js";
import { extent, linear } from "./scale.js";

/**
 * `edges` bound n bins (n + 1 numbers) or, with `labels`, name them; `parts` are
 * { name, word, counts } of n numbers; `expected` is { name, word, counts } or null.
 */
export class Bars {
  #shown = null;
  #scale = null;

  constructor({ title, note, height = 180, format = (value) => short(value), xLabel = null }) {
    this.title = title;
    this.label = xLabel;
    this.format = format;
    this.figure = new Figure({ title, note, height });
    this.figure.draw = (context, width, height_) => this.#draw(context, width, height_);
    this.figure.read = (x) => this.#read(x);
    this.figure.places = () =>
      this.#scale ? Array.from({ length: this.#num }, (_, at) => this.#scale(at + 0.5)) : [];
  }

  get element() {
    return this.figure.element;
  }

  close() {
    this.figure.close();
  }

  show({
    edges = null,
    labels = null,
    parts,
    expected = null,
    isOpen = false,
    y = null,
    describe = "",
  }) {
    const num = parts[0]?.counts.length ?? 0;
    const totals = Array.from({ length: num }, (_, at) =>
      parts.reduce((sum, part) => sum + part.counts[at], 0),
    );
    this.#shown = {
      edges,
      labels,
      parts,
      expected,
      isOpen,
      totals,
      y: y ?? extent([totals, expected?.counts ?? []], { zero: true }),
    };
    this.figure.showLegend([
      ...parts
        .filter((part) => part.counts.some(Boolean))
        .map(({ name, word }) => ({ name, word })),
      ...(expected ? [{ name: expected.name, word: expected.word, kind: "line dashed" }] : []),
    ]);
    this.figure.describe(`${this.title}. ${describe}`);
    this.figure.behind.show(() => this.#table());
    this.figure.redraw();
  }

  get #num() {
    return this.#shown?.totals.length ?? 0;
  }

  #bin(at) {
    const { edges, labels, isOpen } = this.#shown;
    if (labels) return String(labels[at]);
    if (isOpen && at === this.#num - 1) return `${this.format(edges[at])} and more`;
    return `${this.format(edges[at])} to ${this.format(edges[at + 1])}`;
  }

  #table() {
    const { parts, expected, totals } = this.#shown;
    const rest = expected ? [expected.name] : [];
    return {
      head: ["from, to", ...parts.map((part) => part.name), "all", ...rest],
      rows: totals.map((total, at) => [
        this.#bin(at),
        ...parts.map((part) => count(part.counts[at])),
        count(total),
        ...(expected ? [short(expected.counts[at] ?? 0, 4)] : []),
      ]),
      numbers: Array.from({ length: parts.length + 1 + rest.length }, (_, at) => at + 1),
    };
  }

  #draw(context, width, height) {
    if (!this.#num) return;
    const { edges, labels, parts, expected, isOpen, y } = this.#shown;
    const say = (at) => {
      if (labels) return at < labels.length ? String(labels[at]) : "";
      if (isOpen && at === this.#num) return "";
      return this.format(edges[Math.round(at)]);
    };
    const { area, y: yScale } = axes(context, {
      width,
      height,
      // Bins are equally wide whatever they span; edges are written beneath them.
      x: {
        domain: [labels ? -0.5 : 0, this.#num - (labels ? 0.5 : 0)],
        kind: "whole",
        format: say,
        label: this.label,
      },
      y: { domain: [0, y[1] * 1.05], kind: "whole", format: count },
    });
    this.#scale = linear([0, this.#num], [area.left, area.right]);
    const gap = area.right - area.left > this.#num * 6 ? 1 : 0;
    for (let at = 0; at < this.#num; at += 1) {
      let below = 0;
      const [start, end] = [this.#scale(at) + gap, this.#scale(at + 1) - gap];
      for (const part of parts) {
        const above = below + part.counts[at];
        context.fillStyle = filling(context, part.word);
        context.fillRect(start, yScale(above), end - start, yScale(below) - yScale(above));
        below = above;
      }
    }
    if (expected) this.#expected(context, expected, yScale);
  }

  #expected(context, { counts, word }, yScale) {
    context.strokeStyle = colour(word);
    context.lineWidth = 2;
    context.setLineDash([5, 3]);
    context.beginPath();
    counts.forEach((value, at) => {
      if (at === 0) context.moveTo(this.#scale(0), yScale(value));
      else context.lineTo(this.#scale(at), yScale(value));
      context.lineTo(this.#scale(at + 1), yScale(value));
    });
    context.stroke();
    context.setLineDash([]);
  }

  #read(x) {
    if (!this.#scale || !this.#num) return null;
    const at = Math.min(this.#num - 1, Math.max(0, Math.floor(this.#scale.invert(x))));
    const { parts, expected, totals } = this.#shown;
    const whole = totals.reduce((sum, total) => sum + total, 0);
    const said = parts
      .filter((part) => part.counts[at])
      .map((part) => `${part.name} ${count(part.counts[at])}`);
    if (expected) said.push(`${expected.name} ${short(expected.counts[at] ?? 0, 4)}`);
    const part = whole ? ` (${share(totals[at] / whole)})` : "";
    const more = said.length > 1 || expected ? said.join(", ") : null;
    return {
      x: this.#scale(at + 0.5),
      at,
      text: joined([`${this.#bin(at)}: ${count(totals[at])}${part}`, more], "; "),
    };
  }
}

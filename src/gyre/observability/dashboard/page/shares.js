// Time shared out among causes: a bar for each cell, from nothing to all of it.

import { axes, widest } from "./axes.js";
import { colour, filling } from "./colours.js";
import { Figure } from "./figure.js";
import { duration, joined, share } from "./format.js";

const ROW = 20;
const GAP = 6;

export class Shares {
  #shown = null;
  #x = null;
  #at = 0;

  constructor({ title, note }) {
    this.title = title;
    this.figure = new Figure({ title, note });
    this.figure.draw = (context, width, height) => this.#draw(context, width, height);
    this.figure.read = (x) => this.#read(x);
    this.figure.places = () =>
      this.#x ? Array.from({ length: 21 }, (_, at) => this.#x(at / 20)) : [];
    this.figure.frame.addEventListener("pointermove", (event) => {
      const { top } = this.figure.frame.getBoundingClientRect();
      this.#at = Math.floor((event.clientY - top - 8) / (ROW + GAP));
    });
    this.figure.frame.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || !this.#shown) return;
      event.preventDefault();
      this.#at = Math.min(this.#shown.rows.length - 1, Math.max(0, this.#at + by));
      this.figure.redraw();
    });
  }

  get element() {
    return this.figure.element;
  }

  close() {
    this.figure.close();
  }

  /** `rows` are { name, seconds } with a number for each cause. */
  show({ causes, rows }) {
    this.#shown = {
      causes,
      rows: rows.map((row) => ({ ...row, all: row.seconds.reduce((sum, one) => sum + one, 0) })),
    };
    this.figure.setHeight(rows.length * (ROW + GAP) + 34);
    const used = causes.filter((_, at) => rows.some((row) => row.seconds[at] > 0));
    this.figure.showLegend(used.map((cause) => ({ name: cause, word: cause })));
    this.figure.describe(
      joined(
        [`${this.title}.`, ...this.#shown.rows.map((row) => `${row.name}: ${this.#said(row)};`)],
        " ",
      ),
    );
    this.figure.behind.show(() => ({
      head: ["who", ...causes, "all"],
      rows: this.#shown.rows.map((row) => [
        row.name,
        ...row.seconds.map((one) => duration(one)),
        duration(row.all),
      ]),
      numbers: Array.from({ length: causes.length + 1 }, (_, at) => at + 1),
    }));
    this.figure.redraw();
  }

  #said(row) {
    return this.#shown.causes
      .map((cause, at) => [cause, row.seconds[at]])
      .filter(([, seconds]) => seconds > 0)
      .map(([cause, seconds]) => `${cause} ${share(seconds / row.all)} (${duration(seconds)})`)
      .join(", ");
  }

  #draw(context, width, height) {
    if (!this.#shown) return;
    const { causes, rows } = this.#shown;
    const left =
      Math.ceil(
        widest(
          context,
          rows.map((row) => row.name),
        ),
      ) + 10;
    const { area, x } = axes(context, {
      width,
      height,
      left,
      x: { domain: [0, 1], kind: "value", format: (value) => share(value) },
      y: { domain: [0, 1], format: () => "", kind: "whole" },
    });
    this.#x = x;
    rows.forEach((row, number) => {
      const top = area.top + number * (ROW + GAP);
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillStyle = colour("ink");
      context.fillText(row.name, area.left - 6, top + ROW / 2);
      let start = 0;
      causes.forEach((cause, at) => {
        const part = row.all ? row.seconds[at] / row.all : 0;
        context.fillStyle = filling(context, cause);
        context.fillRect(x(start), top, x(start + part) - x(start), ROW);
        start += part;
      });
    });
  }

  #read(pixel) {
    if (!this.#shown || !this.#x || this.#shown.rows.length === 0) return null;
    const row = this.#shown.rows[Math.min(this.#shown.rows.length - 1, Math.max(0, this.#at))];
    return { x: pixel, at: null, text: `${row.name}: ${this.#said(row)}` };
  }
}

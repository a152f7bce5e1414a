// Tables: the one behind every plot, and any other; long ones show a part and say so.

import { el, fill } from "./dom.js";
import { count } from "./format.js";

const MOST_ROWS = 200;

/** A table of texts; a cell may be an element, and `numbers` are columns set to the right. */
export function table({ caption, head, rows, numbers = [] }) {
  const right = new Set(numbers);
  const cell = (name, value, at, extra = {}) =>
    el(
      name,
      { class: right.has(at) ? "number" : null, ...extra },
      value === null || value === undefined ? "–" : value,
    );
  return el(
    "table",
    {},
    caption ? el("caption", {}, caption) : null,
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        head.map((name, at) => cell("th", name, at, { scope: "col" })),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map((row) =>
        el(
          "tr",
          {},
          row.map((value, at) => cell("td", value, at)),
        ),
      ),
    ),
  );
}

/** Names with what they are, side by side. */
export function pairs(list) {
  return el(
    "dl",
    { class: "facts" },
    list.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

/** A table that is made when somebody opens it, and again when what it shows has changed. */
export class TableBehind {
  constructor(title) {
    this.title = title;
    this.content = null;
    this.box = el("div", {
      class: "scrolled",
      tabIndex: 0,
      role: "region",
      "aria-label": `Table: ${title}`,
    });
    this.element = el(
      "details",
      { class: "behind", on: { toggle: () => this.#draw() } },
      el("summary", {}, "Table"),
      this.box,
    );
  }

  /** `content` is a function that gives head, rows and numbers. */
  show(content) {
    this.content = content;
    this.#draw();
  }

  #draw() {
    if (!this.element.open || this.content === null) return;
    const made = this.content();
    const left = made.rows.length - MOST_ROWS;
    // The newest rows are last in everything that grows.
    const rows = left > 0 ? made.rows.slice(-MOST_ROWS) : made.rows;
    fill(
      this.box,
      left > 0
        ? el(
            "p",
            { class: "note" },
            `The last ${count(MOST_ROWS)} of ${count(made.rows.length)} rows.`,
          )
        : null,
      table({ ...made, rows, caption: this.title }),
    );
  }
}

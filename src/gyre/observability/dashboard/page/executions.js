// The executions of a run, a page of a table at a time: what each came to, and a way to its tree.

import * as api from "./api.js";
import { el, fill } from "./dom.js";
import { count, duration, short } from "./format.js";
import { spelled } from "./address.js";
import { table } from "./table.js";

const PAGE = 100;
const ORDERS = [
  ["group", "group"],
  ["name", "name"],
  ["ended", "last ended"],
  ["ran", "longest"],
  ["score", "score"],
];
const KINDS = [
  ["", "training"],
  ["held-out", "held-out evaluation"],
];
const ENDINGS = ["completed", "timed-out", "crashed", "cancelled", "never-started"];
const OUTCOMES = ["valid", "placeholder", "excluded", "surplus"];

/** Behind the name; some are only of executions that are trained on. */
const COLUMNS = [
  { name: "task", said: (row) => row.task ?? "–" },
  { name: "group", said: (row) => count(row.group), isNumber: true, isTrained: true },
  { name: "member", said: (row) => count(row.member), isNumber: true, isTrained: true },
  { name: "version", said: (row) => count(row.version), isNumber: true },
  { name: "stage", said: (row) => row.stage },
  { name: "engine", said: (row) => (row.engine === null ? "–" : `${row.engine}`) },
  { name: "launched", said: (row) => duration(row.launched_s), isNumber: true },
  { name: "ran", said: (row) => duration(row.ran_s), isNumber: true },
  { name: "ended", said: (row) => row.ending ?? "–", isTrained: true },
  { name: "closed as", said: (row) => row.outcome ?? "–" },
  { name: "score", said: (row) => short(row.score, 4), isNumber: true },
  { name: "in step", said: (row) => count(row.step), isNumber: true, isTrained: true },
];

export class ExecutionsView {
  #asked = new api.Newest();

  /** `go(place)` changes the page's address. */
  constructor(go) {
    this.go = go;
    const choice = (name, label, options) =>
      el(
        "label",
        {},
        `${label} `,
        el(
          "select",
          {
            name,
            on: {
              change: (event) => this.go({ [name]: event.target.value || null, offset: null }),
            },
          },
          options.map(([value, text]) => el("option", { value }, text)),
        ),
      );
    this.kind = choice("kind", "of", KINDS);
    this.order = choice("order", "order", ORDERS);
    this.ending = choice("ending", "ended", [
      ["", "in any way"],
      ...ENDINGS.map((one) => [one, one]),
    ]);
    this.outcome = choice("outcome", "closed as", [
      ["", "anything"],
      ...OUTCOMES.map((one) => [one, one]),
    ]);
    this.group = el(
      "label",
      {},
      "group ",
      el("input", {
        type: "number",
        min: 0,
        step: 1,
        on: { change: (event) => this.go({ group: event.target.value || null, offset: null }) },
      }),
    );
    this.pages = el("nav", { class: "pages", "aria-label": "Pages" });
    this.box = el("div", {
      class: "scrolled tall",
      tabIndex: 0,
      role: "region",
      "aria-label": "Table of executions",
    });
    this.status = el("p", { class: "note", role: "status" });
    this.element = el(
      "section",
      { class: "executions", "aria-label": "Executions" },
      el(
        "form",
        { class: "choices", on: { submit: (event) => event.preventDefault() } },
        this.kind,
        this.order,
        this.ending,
        this.outcome,
        this.group,
      ),
      this.status,
      this.box,
      this.pages,
    );
  }

  async show(run, place) {
    for (const [label, value] of [
      [this.kind, place.kind ?? ""],
      [this.order, place.order ?? "group"],
      [this.ending, place.ending ?? ""],
      [this.outcome, place.outcome ?? ""],
      [this.group, place.group ?? ""],
    ])
      label.lastElementChild.value = value;
    const { at, kind, order, group, ending, outcome } = place;
    // Held-out executions are in no group, and journals do not say how they ended.
    this.group.hidden = this.ending.hidden = kind === "held-out";
    const offset = place.offset ?? 0;
    try {
      const found = await this.#asked.ask((signal) =>
        api.executions(
          {
            ...{ run, at, offset, limit: PAGE, order, kind, outcome },
            ...(kind === "held-out" ? {} : { group, ending }),
          },
          signal,
        ),
      );
      if (found !== null) this.#draw(run, place, offset, found);
    } catch (error) {
      this.status.textContent = error.message;
    }
  }

  #draw(run, place, offset, { total, rows }) {
    this.status.textContent = total
      ? `${count(offset + 1)} to ${count(offset + rows.length)} of ${count(total)}`
      : "None.";
    const link = (row) => {
      if (row.execution === null) return `${row.group ?? row.evaluation}.${row.member ?? 0}`;
      if (!row.has_tree) return row.execution;
      return el(
        "a",
        {
          href: spelled({
            ...place,
            view: "tree",
            runs: place.runs,
            execution: row.execution,
            box: null,
            offset: null,
          }),
        },
        row.execution,
      );
    };
    const isHeldOut = place.kind === "held-out";
    const columns = COLUMNS.filter((one) => !(isHeldOut && one.isTrained));
    fill(
      this.box,
      table({
        caption: isHeldOut ? "Executions of held-out evaluation" : "Executions",
        head: ["execution", ...columns.map((one) => one.name)],
        rows: rows.map((row) => [link(row), ...columns.map((one) => one.said(row))]),
        numbers: columns.flatMap((one, at) => (one.isNumber ? [at + 1] : [])),
      }),
    );
    const page = (text, to, isThere) =>
      el(
        "button",
        { type: "button", disabled: !isThere, on: { click: () => this.go({ offset: to }) } },
        text,
      );
    fill(
      this.pages,
      page("Before", Math.max(0, offset - PAGE) || null, offset > 0),
      page("Next", offset + PAGE, offset + rows.length < total),
    );
  }
}

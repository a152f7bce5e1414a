// The reader: calls of a box one after the other, each fetched when somebody comes near it.

import * as api from "./api.js";
import { el, fill } from "./dom.js";
import { count, duration, joined, many } from "./format.js";
import { Tokens } from "./tokens.js";

const MODES = [
  ["provenance", "where tokens came from"],
  ["targets", "targets and their draws"],
  ["logprobs", "log-probabilities"],
  ["versions", "versions of the weights"],
];
const FOLDED_LINES = 24;

export class Reader {
  #observer = null;
  #shown = 0;

  constructor() {
    this.title = el("h3", {});
    this.said = el("output", { class: "readout", "aria-live": "polite" });
    this.list = el("div", {
      class: "read-list",
      tabIndex: 0,
      role: "group",
      "aria-label": "Calls",
    });
    this.modes = el(
      "select",
      { "aria-label": "What colours of tokens say", on: { change: () => this.#mode() } },
      MODES.map(([value, text]) => el("option", { value }, text)),
    );
    this.legend = el("ul", { class: "legend" });
    this.element = el(
      "section",
      { class: "reader", tabIndex: -1, "aria-label": "Messages of the box" },
      el(
        "header",
        {},
        this.title,
        el("label", {}, "colours: ", this.modes),
        this.legend,
        this.said,
      ),
      this.list,
    );
    this.#mode();
  }

  clear() {
    this.#observer?.disconnect();
    this.#shown += 1;
    fill(this.title);
    fill(this.list);
    this.said.textContent = "";
  }

  /** The messages of one box; those before it on its path are in the boxes before it. */
  show(run, execution, box) {
    this.clear();
    const ticket = this.#shown;
    const calls = box.kind === "preface" ? [box.call] : box.calls;
    this.title.textContent =
      box.kind === "preface"
        ? "Preface"
        : `${many(box.calls.length, "call")} of ${box.agent ?? box.role}`;
    this.#observer = new IntersectionObserver(
      (entries) => {
        for (const { isIntersecting, target } of entries) {
          if (!isIntersecting) continue;
          this.#observer.unobserve(target);
          this.#load(ticket, target, run, execution, box);
        }
      },
      { root: this.list, rootMargin: "600px" },
    );
    for (const number of calls) {
      const section = el(
        "section",
        { class: "call waiting", data: { call: number }, "aria-label": `Call ${number}` },
        el("p", { class: "note" }, `call ${number} …`),
      );
      this.list.append(section);
      this.#observer.observe(section);
    }
    this.list.scrollTo(0, 0);
  }

  async #load(ticket, section, run, execution, box) {
    const number = Number(section.dataset.call);
    try {
      const call = await api.call(run, execution, number);
      if (ticket !== this.#shown) return;
      section.classList.remove("waiting");
      fill(section, box.kind === "preface" ? prefaceOf(call, box) : this.#call(call));
    } catch (error) {
      if (ticket === this.#shown) fill(section, el("p", { class: "problem" }, error.message));
    }
  }

  #call(call) {
    const notes = [
      call.fork === null ? null : `fork: ${call.fork}`,
      call.is_committed ? null : "uncommitted",
      ["stop", "tool_calls"].includes(call.finish) ? null : `ended by ${call.finish}`,
      ...call.flags,
    ].filter(Boolean);
    const who = joined([call.role, call.agent], " ");
    const tokens = new Tokens(call, (text) => {
      this.said.textContent = text;
    });
    return [
      el(
        "h4",
        {},
        `call ${call.call}`,
        el(
          "span",
          { class: "note" },
          ` ${joined([who, duration(call.closed_at - call.opened_at), engines(call), ...notes])}`,
        ),
      ),
      call.messages.filter((one) => one.segment !== call.root).map(told),
      tokens.element,
    ];
  }

  #mode() {
    const mode = this.modes.value || MODES[0][0];
    for (const [name] of MODES) this.element.classList.toggle(`mode-${name}`, name === mode);
    fill(
      this.legend,
      LEGENDS[mode].map(([name, style]) =>
        el(
          "li",
          {},
          el("span", { class: `token-sample ${style}`, "aria-hidden": "true" }, "ab"),
          name,
        ),
      ),
    );
  }
}

const LEGENDS = {
  provenance: [
    ["policy, underlined", "tok policy"],
    ["harness, plain", "harness"],
    ["tool, dashed", "tool"],
    ["template, dotted", "template"],
  ],
  targets: [
    ["target", "tok policy target"],
    ["sampled, no target", "tok policy"],
    ["never received", "tok policy unreceived"],
  ],
  logprobs: [
    ["above 90 %", "tok policy p-5"],
    ["50 to 90 %", "tok policy p-4"],
    ["10 to 50 %", "tok policy p-3"],
    ["1 to 10 %, underlined", "tok policy p-2"],
    ["below 1 %, twice", "tok policy p-1"],
  ],
  versions: [["each version in a colour of its own, named where it begins", "tok policy ver-1"]],
};

function engines(call) {
  const parts = call.spans.map(
    (span) => `${span.engine}${span.version === null ? "" : ` v${span.version}`}`,
  );
  return parts.length ? parts.join(", then ") : "no engine";
}

function prefaceOf(call, box) {
  const found = call.messages.filter((one) => one.segment === box.segment);
  return found.length
    ? found.map(told)
    : el("p", { class: "note" }, "It was told by an earlier call.");
}

/** A message of the harness, by runs of tokens that came from one place; long ones are folded. */
export function told(message) {
  const text = el("div", { class: "text" }, message.runs.map(runOf));
  const replaced = message.trim && `in place of the last ${count(message.trim)} before it`;
  const head = el(
    "h5",
    {},
    message.label,
    el("span", { class: "note" }, ` ${joined([many(message.num_tokens, "token"), replaced])}`),
  );
  const lines = message.runs.reduce(
    (sum, run) => sum + (run.text?.split("\n").length ?? 0) + (run.text?.length ?? 0) / 80,
    0,
  );
  const parts = [head, text];
  if (message.left_out)
    parts.push(
      el("p", { class: "note" }, `${count(message.left_out)} tokens in the middle are left out.`),
    );
  if (lines > FOLDED_LINES) {
    text.classList.add("folded");
    const button = el(
      "button",
      { type: "button", class: "unfold", "aria-expanded": "false" },
      "Show all of it",
    );
    button.addEventListener("click", () => {
      const isFolded = text.classList.toggle("folded");
      button.setAttribute("aria-expanded", String(!isFolded));
      button.textContent = isFolded ? "Show all of it" : "Show less of it";
    });
    parts.push(button);
  }
  return el("div", { class: "message" }, parts);
}

function runOf(run) {
  if (run.text === null)
    return el(
      "span",
      { class: "note" },
      `${many(run.num_tokens, "token")} of the ${run.source}, with no tokenizer to read them. `,
    );
  return el(
    "span",
    { class: run.source, title: `${run.source}, ${many(run.num_tokens, "token")}` },
    run.text,
  );
}

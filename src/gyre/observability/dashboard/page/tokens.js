// A reply token by token: the draw that took it, how likely it was, and which weights said it.

import { el } from "./dom.js";
import { count, many, share, short } from "./format.js";

const BOUNDS = [0.01, 0.1, 0.5, 0.9];

/** The class of a log-probability, 1 (unlikely) to 5 (nearly sure). */
export function likelihood(logprob) {
  const chance = Math.exp(logprob);
  return 1 + BOUNDS.filter((bound) => chance >= bound).length;
}

/** Of each token the weights that sampled it, from spans of so many tokens each. */
export function versionsOf(spans, num) {
  const found = [];
  for (const { version, tokens } of spans) {
    for (let at = 0; at < tokens && found.length < num; at += 1) found.push(version);
  }
  while (found.length < num) found.push(null);
  return found;
}

export class Tokens {
  #at = -1;

  /** `say(text)` is told what the token is that the pointer or the cursor is on. */
  constructor(call, say) {
    this.call = call;
    this.reply = call.reply;
    this.say = say;
    this.versions = versionsOf(call.spans, this.reply.ids.length);
    this.box = el("div", {
      class: "text tokens",
      tabIndex: 0,
      role: "group",
      "aria-label": "Tokens of the reply; arrow keys go from one to the next",
    });
    this.element = el("div", { class: "message reply" }, this.#head(), this.#inside());
    this.box.addEventListener("pointerover", (event) => {
      const at = event.target.dataset?.at;
      if (at !== undefined) this.#point(Number(at));
    });
    this.box.addEventListener("keydown", (event) => this.#key(event));
  }

  #head() {
    const {
      num_tokens: num,
      num_targets: targets,
      draw,
      why_not: why,
      left_out: left,
    } = this.reply;
    const what =
      why === null ? `${count(targets)} of them targets of draw ${draw}` : `no targets: ${why}`;
    const rest = left ? `; the last ${count(left)} are left out here` : "";
    return el(
      "h5",
      {},
      "reply",
      el("span", { class: "note" }, ` ${many(num, "token")}, ${what}${rest}`),
    );
  }

  #inside() {
    const { prompt, pieces, message } = this.reply;
    const before = prompt
      .filter((run) => run.text)
      .map((run) => el("span", { class: "template", title: "generation prompt" }, run.text));
    if (pieces === null) return [el("div", { class: "text" }, before, spoken(message))];
    this.box.append(...before);
    for (let at = 0; at < pieces.length; at += 1) this.box.append(this.#token(at));
    return [this.box];
  }

  #token(at) {
    const { pieces, logprobs, num_targets: targets } = this.reply;
    const classes = ["tok", "policy"];
    if (at < targets) classes.push("target");
    if (at >= this.call.committed_tokens) classes.push("unreceived");
    if (logprobs && logprobs[at] !== null) classes.push(`p-${likelihood(logprobs[at])}`);
    if (this.versions[at] !== null) classes.push(`ver-${this.versions[at] % 6}`);
    const data = { at };
    // Said once, where weights begin to speak.
    if (this.versions[at] !== null && this.versions[at] !== this.versions[at - 1])
      data.version = this.versions[at];
    return el("span", { class: classes.join(" "), data }, pieces[at]);
  }

  #point(at) {
    this.box.querySelector(".here")?.classList.remove("here");
    this.#at = at;
    this.box.querySelector(`[data-at="${at}"]`)?.classList.add("here");
    this.say(this.said(at));
  }

  /** A token in words. */
  said(at) {
    const { ids, pieces, logprobs, num_targets: targets, draw } = this.reply;
    const parts = [
      `token ${count(at + 1)} of ${count(ids.length)}: ${JSON.stringify(pieces[at])}`,
      `id ${ids[at]}`,
    ];
    if (logprobs && logprobs[at] !== null)
      parts.push(`log-probability ${short(logprobs[at], 4)} (${share(Math.exp(logprobs[at]))})`);
    if (this.versions[at] !== null) parts.push(`version ${this.versions[at]}`);
    if (at < targets) parts.push(`target of draw ${draw}`);
    else if (at >= this.call.committed_tokens) parts.push("never received");
    else parts.push("no target");
    return parts.join(", ");
  }

  #key(event) {
    const last = this.reply.ids.length - 1;
    const to = { ArrowRight: this.#at + 1, ArrowLeft: this.#at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    event.stopPropagation();
    this.#point(Math.min(last, Math.max(0, to)));
  }
}

/** A reply where tokens cannot be read: its thinking, its text, its tool calls. */
function spoken(message) {
  return [
    message.reasoning ? el("span", { class: "policy" }, `(${message.reasoning.trim()})\n`) : null,
    message.text ? el("span", { class: "policy" }, message.text) : null,
    message.calls.map((one) => el("span", { class: "policy" }, `\n${one.name} ${one.arguments}`)),
  ];
}

// The slider along a run: any moment can be gone to, step by step or by hand, or the end followed.

import { el } from "./dom.js";
import { duration } from "./format.js";
import { lastAtMost } from "./scale.js";

const PARTS = 2000;

export class Scrubber {
  #end = 0;
  #at = null;
  #steps = [];

  /** `go(at)` is called with a time, or with null to follow. */
  constructor(go) {
    this.go = go;
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: PARTS,
      value: PARTS,
      "aria-label": "Moment of the run",
      on: { input: () => this.#moved() },
    });
    this.said = el("output", { class: "said" });
    this.live = el(
      "button",
      { type: "button", class: "live", "aria-pressed": "true", on: { click: () => this.go(null) } },
      "Follow",
    );
    const step = (by, label, text) =>
      el(
        "button",
        { type: "button", "aria-label": label, title: label, on: { click: () => this.#step(by) } },
        text,
      );
    this.element = el(
      "div",
      { class: "scrubber" },
      step(-1, "To the step before", "◀"),
      this.slider,
      step(1, "To the next step", "▶"),
      this.said,
      this.live,
    );
  }

  /** A run that goes until `end`, of which `at` is shown (null: its end), with steps at times. */
  show({ end, at, steps }) {
    this.#end = end;
    this.#at = at;
    this.#steps = steps;
    if (document.activeElement !== this.slider || at === null)
      this.slider.value = String(end > 0 && at !== null ? Math.round((at / end) * PARTS) : PARTS);
    const text = at === null ? `now, ${duration(end)}` : `${duration(at)} of ${duration(end)}`;
    this.said.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
    this.live.setAttribute("aria-pressed", String(at === null));
  }

  #moved() {
    const value = Number(this.slider.value);
    this.go(value >= PARTS ? null : (value / PARTS) * this.#end);
  }

  #step(by) {
    const at = nextStep(this.#steps, this.#at ?? this.#end, by);
    this.go(at === null || at >= this.#end ? null : at);
  }
}

/** The time of the step before or after a moment; null after the last one, 0 before the first. */
export function nextStep(steps, at, by) {
  const here = lastAtMost(steps, at);
  if (by > 0) return here + 1 < steps.length ? steps[here + 1] : null;
  const before = here >= 0 && steps[here] < at ? here : here - 1;
  return before >= 0 ? steps[before] : 0;
}

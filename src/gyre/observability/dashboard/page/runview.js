// The view of runs: a moment, a scrubber, and panels that are fetched while somebody sees them.

import * as api from "./api.js";
import { COUNTED } from "./counts.js";
import { OVER_STEPS } from "./curves.js";
import { el, fill } from "./dom.js";
import { FAULTS } from "./faults.js";
import { duration } from "./format.js";
import { KEPT } from "./kept.js";
import { Moment } from "./moment.js";
import { Panel } from "./panel.js";
import { OVER_TIME } from "./panels.js";
import { Scrubber } from "./scrubber.js";
import { USED } from "./use.js";

const BESIDE = [...OVER_TIME, ...COUNTED, ...USED, ...KEPT, ...FAULTS];
/** Panels of which each run has its own. */
const PAUSE_MS = 1000;
/** Between two questions while a run is followed. */
const HASTE_MS = 60;
/** Between two questions while somebody scrubs. */

export class RunView {
  #place = null;
  #stories = new Map();
  #seen = new Set();
  #timer = null;
  #last = 0;
  #busy = false;
  #again = false;
  #moments = new Map();

  /** `go(place)` changes the address, `problem(text)` says what went wrong; `names` are by key. */
  constructor(go, problem, names) {
    this.go = go;
    this.names = names;
    this.problem = problem;
    const hands = {
      onPick: (at) => this.go({ at }),
      onSpan: ([from, to]) => this.go({ from, to }),
    };
    this.scrubber = new Scrubber((at) => this.go({ at }, { isQuiet: true }));
    this.window = el(
      "p",
      { class: "window", hidden: true },
      el("span", {}),
      " ",
      el(
        "button",
        { type: "button", on: { click: () => this.go({ from: null, to: null }) } },
        "Whole run",
      ),
    );
    this.now = el("div", { class: "moments" });
    this.panels = [
      ...BESIDE.map((spec) => new Panel(spec, { isShared: false, hands })),
      ...OVER_STEPS.map((spec) => new Panel(spec, { isShared: true, hands })),
    ];
    this.panels.sort((one, other) => ORDER.indexOf(one.spec.id) - ORDER.indexOf(other.spec.id));
    this.element = el(
      "div",
      { class: "run-view" },
      this.now,
      el("div", { class: "bar" }, this.scrubber.element, this.window),
      el(
        "div",
        { class: "panels" },
        this.panels.map((panel) => panel.element),
      ),
    );
    const observer = new IntersectionObserver((entries) => this.#observed(entries), {
      rootMargin: "200px",
    });
    for (const panel of this.panels) observer.observe(panel.element);
  }

  /** Shows this place: runs, the moment, the window. */
  show(place) {
    const before = this.#place;
    this.#place = place;
    const isOther = !before || before.runs.join() !== place.runs.join();
    if (isOther) {
      this.#stories.clear();
      this.#moments.clear();
      fill(this.now);
    }
    this.#scrub();
    this.#soon(isOther ? 0 : HASTE_MS);
  }

  /** Something is new in a run. */
  heard(news) {
    if (!this.#place || !this.#place.runs.includes(news.run)) return;
    const story = this.#stories.get(news.run);
    if (story) {
      Object.assign(story.run, {
        state: news.state,
        ended: news.ended,
        problem: news.problem,
        now_s: news.now_s,
      });
      if (this.#place.at === null && news.moment)
        this.#moment(news.run, { ...story, moment: news.moment });
      this.#scrub();
    }
    if (this.#place.at === null || !story) this.#soon(PAUSE_MS);
  }

  #observed(entries) {
    for (const { target, isIntersecting } of entries) {
      const panel = this.panels.find((one) => one.element === target);
      if (isIntersecting) this.#seen.add(panel);
      else this.#seen.delete(panel);
    }
    this.#soon(HASTE_MS);
  }

  /** Asks again after a pause; what is asked meanwhile is asked once. */
  #soon(pause) {
    if (!this.#place || this.element.hidden) return;
    if (this.#busy) {
      this.#again = true;
      return;
    }
    const wait = Math.max(0, this.#last + pause - performance.now());
    if (this.#timer !== null && this.#timer.at <= performance.now() + wait) return;
    clearTimeout(this.#timer?.id);
    this.#timer = { at: performance.now() + wait, id: setTimeout(() => this.#refresh(), wait) };
  }

  async #refresh() {
    this.#timer = null;
    this.#busy = true;
    this.#last = performance.now();
    const { runs, at, from, to } = this.#place;
    const wanted = [...this.#seen];
    const names = new Set(wanted.flatMap((panel) => panel.spec.needs));
    // The scrubber needs to know where steps are.
    names.add("steps");
    try {
      const values = { at, from, to, points: points(), panels: [...names].join(",") };
      const found = await Promise.all(runs.map((run) => api.story({ run, ...values })));
      if (this.#place.runs === runs || this.#place.runs.join() === runs.join())
        this.#took(runs, found, wanted);
      this.problem(null);
    } catch (error) {
      this.problem(error.message);
    } finally {
      this.#busy = false;
      if (this.#again) {
        this.#again = false;
        this.#soon(this.#place.at === null ? PAUSE_MS : HASTE_MS);
      }
    }
  }

  #took(runs, found, wanted) {
    runs.forEach((run, at) => {
      const before = this.#stories.get(run);
      found[at].run.name = this.names.get(run);
      this.#stories.set(run, { ...found[at], panels: { ...before?.panels, ...found[at].panels } });
      this.#moment(run, this.#stories.get(run));
    });
    this.#scrub();
    const stories = runs.map((run) => this.#stories.get(run));
    for (const panel of wanted) {
      if (
        stories.every((story) => panel.spec.needs.every((name) => story.panels[name] !== undefined))
      )
        panel.show(stories, this.#place);
    }
    // Call logs are read behind whoever asks, also when the run has no news any more.
    if (found.some(({ panels }) => panels?.trees?.is_reading))
      this.later ??= setTimeout(() => {
        this.later = null;
        this.#soon(HASTE_MS);
      }, PAUSE_MS);
  }

  #moment(run, story) {
    if (!this.#moments.has(run)) {
      const view = new Moment();
      const title = el("h2", {});
      this.#moments.set(run, {
        view,
        title,
        element: el(
          "section",
          { class: "run-moment", "aria-label": story.run.name },
          title,
          view.element,
        ),
      });
      fill(
        this.now,
        this.#place.runs.map((key) => this.#moments.get(key)?.element),
      );
    }
    const { view, title } = this.#moments.get(run);
    fill(
      title,
      story.run.name,
      " ",
      el("span", { class: `badge state-${story.run.state}` }, stateOf(story.run)),
      story.run.problem ? el("span", { class: "problem" }, ` ${story.run.problem}`) : null,
    );
    // A run whose journal has no header yet has neither; news of it may come before its shape.
    const isKnown = story.moment !== null && story.shape !== null;
    view.element.hidden = !isKnown;
    if (isKnown) view.show(story.moment, story.shape);
  }

  #scrub() {
    const stories = this.#place.runs.map((run) => this.#stories.get(run)).filter(Boolean);
    if (!stories.length) return;
    const { at, from, to } = this.#place;
    const known = stories[0].panels.steps?.at_s ?? [];
    // A story of a moment knows only the steps before it: those known already stay.
    this.steps =
      known.length >= (this.steps?.length ?? 0) || this.stepsOf !== this.#place.runs[0]
        ? known
        : this.steps;
    this.stepsOf = this.#place.runs[0];
    this.scrubber.show({
      end: Math.max(...stories.map(({ run }) => run.now_s)),
      at,
      steps: this.steps,
    });
    this.window.hidden = from === null && to === null;
    const end = to === null ? "the end" : duration(to);
    this.window.firstElementChild.textContent = `From ${duration(from ?? 0)} to ${end}.`;
  }
}

const ORDER = [
  "roles",
  "water",
  "supply",
  "groups",
  "reward",
  "staleness",
  "time",
  "idle",
  "use",
  "durations",
  "trees",
  "objective",
  "tokens",
  "transitions",
  "kept",
  "faults",
];

const points = () => Math.min(1200, Math.max(300, Math.round(window.innerWidth / 2)));

function stateOf(run) {
  const state = run.ended === null ? run.state : `ended: ${run.ended}`;
  return run.is_simulated ? `${state}, simulated` : state;
}

// One panel in the page: its figures for each run shown, side by side or over one another.

import { el, fill, freshId } from "./dom.js";

export class Panel {
  #views = [];
  #num = 0;

  /** `isShared`: one set of figures shows all runs; else each run has its own. */
  constructor(spec, { isShared, hands }) {
    this.spec = spec;
    this.isShared = isShared;
    this.hands = hands;
    const heading = freshId("panel");
    this.note = el("p", { class: "note" });
    this.body = el("div", { class: "panel-body" });
    this.element = el(
      "section",
      {
        class: `panel${spec.isWide ? " wide" : ""}`,
        "aria-labelledby": heading,
        data: { panel: spec.id },
      },
      el("h2", { id: heading }, spec.title),
      this.note,
      this.body,
    );
  }

  /** Draws these stories, which have all that the panel needs, in a window of their time. */
  show(stories, { from, to }) {
    if (stories.length !== this.#num) this.#make(stories);
    // Up to the end of the run also where a moment before it is shown, so that nothing jumps.
    const end = Math.max(1e-9, ...stories.map(({ run }) => run.now_s));
    const x = (from ?? 0) < (to ?? end) ? [from ?? 0, to ?? end] : [0, end];
    const notes = this.isShared
      ? [this.#views[0].show(stories)]
      : stories.map((story, at) => {
          const said = this.#views[at].show(story, { x, until: story.run.to_s, stories });
          return said && stories.length > 1 ? `${story.run.name}: ${said}` : said;
        });
    this.#views.forEach((view, at) => {
      if (view.title) named(view, stories[at].run.name);
    });
    this.note.textContent = notes.filter(Boolean).join(" ");
    this.note.hidden = !this.note.textContent;
    this.element.classList.add("drawn");
  }

  #make(stories) {
    for (const view of this.#views) for (const figure of view.figures) figure.close();
    this.#num = stories.length;
    const num = this.isShared ? 1 : stories.length;
    this.#views = Array.from({ length: num }, () => {
      const view = this.spec.make(this.hands);
      const title = num > 1 ? el("p", { class: "run-name" }) : null;
      // What the panel is called need not be said again.
      if (view.figures.length === 1 && view.figures[0].title === this.spec.title)
        view.figures[0].element.classList.add("sole");
      return {
        ...view,
        title,
        element: el(
          "div",
          { class: view.isGrid ? "figures grid" : "figures" },
          title,
          view.figures.map((one) => one.element),
          view.beside,
        ),
      };
    });
    this.body.className = num > 1 ? "panel-body beside" : "panel-body";
    this.element.classList.toggle("wide", Boolean(this.spec.isWide) || num > 1);
    fill(
      this.body,
      this.#views.map((view) => view.element),
    );
  }
}

/** Figures of several runs side by side: each, and what can be scrolled in it, bears its name. */
function named({ title, element }, name) {
  if (title.textContent === name) return;
  title.textContent = name;
  for (const region of element.querySelectorAll("[role=region]")) {
    region.dataset.label ??= region.getAttribute("aria-label");
    region.setAttribute("aria-label", `${region.dataset.label}, ${name}`);
  }
}

// The tree of an execution: boxes of calls, made where somebody looks, with a reader beside them.

import * as api from "./api.js";
import { callsInside, described, numbered, prefaceInside } from "./boxes.js";
import { el, fill, onceAFrame, slug, svg } from "./dom.js";
import { count } from "./format.js";
import { edge, layout, neighbour, within } from "./layout.js";
import { leftBehind } from "./left.js";
import { Reader } from "./reader.js";
import { table } from "./table.js";
import { treeHead } from "./treehead.js";

const AROUND = 400;
/** Pixels beyond the window in which boxes are made already. */

export class TreeView {
  #run = null;
  #execution = null;
  #data = null;
  #layout = null;
  #chosen = null;
  #path = new Set();
  #made = new Map();
  #asked = new api.Newest();
  #drawn = onceAFrame(() => this.#draw());

  /** `go(place)` changes the page's address. */
  constructor(go) {
    this.go = go;
    this.head = el("header", { class: "tree-head" });
    this.edges = svg("path", { class: "edges", fill: "none" });
    this.sheet = el(
      "div",
      { class: "sheet" },
      svg("svg", { "aria-hidden": "true", width: "100%", height: "100%" }, this.edges),
    );
    this.window = el(
      "div",
      {
        class: "tree-window",
        role: "tree",
        "aria-label": "Calls of the execution",
        on: { scroll: () => this.#drawn(), keydown: (event) => this.#key(event) },
      },
      this.sheet,
    );
    this.outline = el(
      "details",
      { class: "behind", on: { toggle: () => this.#outlined() } },
      el("summary", {}, "Table"),
      el("div", {
        class: "scrolled",
        tabIndex: 0,
        role: "region",
        "aria-label": "Boxes of the tree",
      }),
    );
    this.reader = new Reader();
    this.left = el("section", { class: "left", "aria-label": "What it left behind" });
    this.element = el(
      "div",
      { class: "tree-view" },
      this.head,
      el(
        "div",
        { class: "tree-body" },
        el("div", { class: "tree-pane" }, this.window, this.outline),
        el("div", { class: "side" }, this.reader.element, this.left),
      ),
    );
    new ResizeObserver(() => this.#drawn()).observe(this.window);
  }

  /** An execution of a run, with one of its boxes chosen; the same again is not fetched again. */
  async show(run, execution, box) {
    if (run === this.#run && execution === this.#execution && this.#data) {
      this.#choose(box, { isScrolled: box !== this.#chosen });
      return;
    }
    [this.#run, this.#execution, this.#data, this.#layout] = [run, execution, null, null];
    fill(this.head, el("p", { class: "note", role: "status" }, `Reading ${execution} …`));
    this.#clear();
    this.#showLeft();
    try {
      const data = await this.#asked.ask((signal) => api.tree(run, execution, signal));
      if (data === null) return;
      this.#data = data;
      this.#layout = layout(data.boxes);
      this.#chosen = null;
      this.#path = new Set();
      this.sheet.style.width = `${this.#layout.width}px`;
      this.sheet.style.height = `${this.#layout.height}px`;
      this.window.scrollTo(0, 0);
      fill(
        this.head,
        treeHead(data, { again: () => this.#again(), mark: (boxes) => this.#mark(boxes) }),
      );
      this.#choose(box ?? 0, { isScrolled: box !== null });
      this.#outlined();
    } catch (error) {
      fill(this.head, el("p", { class: "problem", role: "alert" }, error.message));
    }
  }

  /** The log of an open execution grows. */
  #again() {
    this.#data = null;
    this.show(this.#run, this.#execution, this.#chosen);
  }

  #clear() {
    for (const made of this.#made.values()) made.remove();
    this.#made.clear();
    this.edges.setAttribute("d", "");
    this.reader.clear();
  }

  /** Marks the path of a trajectory, or of none. */
  #mark(boxes) {
    this.#path = new Set(boxes);
    for (const made of this.#made.values()) made.remove();
    this.#made.clear();
    if (boxes.length) this.#scrollTo(boxes.at(-1));
    this.#drawn();
  }

  // Boxes

  #draw() {
    if (!this.#layout || !this.window.isConnected) return;
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.window;
    const seen = {
      left: scrollLeft - AROUND,
      top: scrollTop - AROUND,
      right: scrollLeft + clientWidth + AROUND,
      bottom: scrollTop + clientHeight + AROUND,
    };
    const wanted = new Set(within(this.#layout.places, seen));
    if (this.#chosen !== null) wanted.add(this.#chosen);
    for (const [id, made] of this.#made) {
      if (wanted.has(id)) continue;
      made.remove();
      this.#made.delete(id);
    }
    for (const id of [...wanted].sort((one, other) => one - other)) {
      if (this.#made.has(id)) continue;
      const made = this.#box(this.#data.boxes[id]);
      this.#made.set(id, made);
      this.sheet.append(made);
    }
    this.edges.setAttribute("d", this.#edges(seen));
  }

  #edges({ left, top, right, bottom }) {
    const { places } = this.#layout;
    const parts = [];
    this.#data.boxes.forEach(({ id, parent }) => {
      if (parent === null) return;
      const [from, to] = [places[parent], places[id]];
      if (to.x < left || from.x + from.width > right || from.y > bottom || to.y + 40 < top) return;
      parts.push(edge(from, to));
    });
    return parts.join("");
  }

  #box(box) {
    const place = this.#layout.places[box.id];
    const { children, roots } = this.#layout;
    const siblings = box.parent === null ? roots : children[box.parent];
    const made = el(
      "div",
      {
        class: [
          "box",
          box.kind,
          box.role ? `role-${slug(box.role)}` : "",
          box.is_summary ? "summary" : "",
          box.is_committed === false ? "uncommitted" : "",
          this.#path.has(box.id) ? "on-path" : "",
        ].join(" "),
        role: "treeitem",
        tabIndex: box.id === this.#chosen ? 0 : -1,
        "aria-level": place.level + 1,
        "aria-setsize": siblings.length,
        "aria-posinset": siblings.indexOf(box.id) + 1,
        "aria-selected": String(box.id === this.#chosen),
        "aria-label": described(box),
        data: { box: box.id },
        on: { click: () => this.go({ box: box.id }) },
      },
      box.kind === "preface" ? prefaceInside(box) : callsInside(box),
    );
    made.style.transform = `translate(${place.x}px, ${place.y}px)`;
    made.style.width = `${place.width}px`;
    made.style.height = `${place.height}px`;
    return made;
  }

  #choose(id, { isScrolled }) {
    const box = this.#data.boxes[id ?? 0];
    if (!box) return;
    const before = this.#chosen;
    this.#chosen = box.id;
    for (const other of [before, box.id]) {
      const made = this.#made.get(other);
      if (!made) continue;
      made.setAttribute("aria-selected", String(other === this.#chosen));
      made.tabIndex = other === this.#chosen ? 0 : -1;
    }
    // Asked before drawing, which takes away the box that had it.
    const hadFocus = this.window.contains(document.activeElement);
    if (isScrolled) this.#scrollTo(box.id);
    this.#draw();
    if (hadFocus) this.#made.get(box.id)?.focus({ preventScroll: true });
    if (before !== box.id) this.reader.show(this.#run, this.#execution, box);
  }

  #scrollTo(id) {
    const place = this.#layout.places[id];
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.window;
    const isSeen =
      place.x >= scrollLeft &&
      place.x + place.width <= scrollLeft + clientWidth &&
      place.y >= scrollTop &&
      place.y + place.height <= scrollTop + clientHeight;
    if (!isSeen)
      this.window.scrollTo(
        Math.max(0, place.x - clientWidth / 3),
        Math.max(0, place.y - clientHeight / 3),
      );
  }

  #key(event) {
    if (!this.#layout || this.#chosen === null) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.reader.element.focus();
      return;
    }
    const next = neighbour(this.#chosen, event.key, this.#layout, this.#data.boxes);
    if (next === null) return;
    event.preventDefault();
    this.go({ box: next }, { isQuiet: true });
  }

  // Beside the drawing

  #outlined() {
    if (!this.outline.open || !this.#data) return;
    const rows = this.#data.boxes.map((box) => [
      el(
        "a",
        {
          href: "#",
          on: {
            click: (event) => {
              event.preventDefault();
              this.go({ box: box.id });
            },
          },
        },
        `${box.id}`,
      ),
      box.parent === null ? "–" : `${box.parent}`,
      box.kind === "preface" ? "preface" : numbered(box.calls),
      box.role ?? "–",
      box.agent ?? "–",
      box.fork ?? "–",
      count(box.new_tokens),
      count(box.output_tokens ?? null),
      count(box.path_tokens),
      count(box.targets ?? null),
      box.draws?.join(", ") || "–",
    ]);
    fill(
      this.outline.lastElementChild,
      table({
        caption: "Boxes of the tree",
        head: [
          "box",
          "below",
          "calls",
          "role",
          "agent",
          "fork",
          "new",
          "sampled",
          "path",
          "targets",
          "draws",
        ],
        rows,
        numbers: [0, 1, 6, 7, 8, 9],
      }),
    );
  }

  async #showLeft() {
    const [run, execution] = [this.#run, this.#execution];
    fill(this.left);
    try {
      const { left } = await api.left(run, execution);
      if (run === this.#run && execution === this.#execution) fill(this.left, leftBehind(left));
    } catch (error) {
      if (execution === this.#execution) fill(this.left, el("p", { class: "note" }, error.message));
    }
  }
}

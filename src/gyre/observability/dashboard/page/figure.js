// A drawing with everything around it: title, legend, readout, keyboard, and a table behind it.

import { colour, isHatched } from "./colours.js";
import { cursor } from "./cursor.js";
import { el, fill, freshId, onceAFrame, slug } from "./dom.js";
import { TableBehind } from "./table.js";

const LEAST_DRAG = 6;
const all = new Set();

/** Every figure that stands in the page is drawn again, as after a change of theme. */
export function redrawAll() {
  for (const figure of all) figure.redraw();
}

/**
 * One canvas in its frame.
 *
 * `draw(context, width, height)` draws it, whenever it is asked to; `read(x)` says what is at a
 * pixel: { x, at, text } or null; `places(width)` are the pixels that arrow keys step through, and
 * `domain()` is the extent that + and - look closer at.
 */
export class Figure {
  #wanted = onceAFrame(() => this.#draw());
  #wantedOver = onceAFrame(() => this.#drawOver());
  #drag = null;
  #here = null;
  #legend = null;

  constructor({ title, note = "", height = 180, isTime = false, level = 3 }) {
    const heading = freshId("title");
    const readout = freshId("readout");
    this.height = height;
    this.isTime = isTime;
    this.draw = () => {};
    this.read = () => null;
    this.places = () => [];
    this.domain = () => null;
    this.onPick = null;
    this.onSpan = null;
    this.base = el("canvas", { class: "base", "aria-hidden": "true" });
    this.over = el("canvas", { class: "over", "aria-hidden": "true" });
    this.readout = el("output", { class: "readout", id: readout, "aria-live": "polite" });
    this.frame = el(
      "div",
      {
        class: "drawing",
        tabIndex: 0,
        role: "group",
        "aria-roledescription": "plot",
        "aria-label": title,
        "aria-describedby": readout,
      },
      this.base,
      this.over,
    );
    this.frame.style.height = `${height}px`;
    this.legend = el("ul", { class: "legend" });
    this.note = el("p", { class: "note" }, note);
    this.behind = new TableBehind(title);
    this.element = el(
      "figure",
      { class: "plot", "aria-labelledby": heading },
      el("figcaption", {}, el(`h${level}`, { id: heading }, title), this.note),
      this.legend,
      this.frame,
      this.readout,
      this.behind.element,
    );
    this.#listen();
    new ResizeObserver(() => this.redraw()).observe(this.frame);
    this.onMove = () => this.#wantedOver();
    all.add(this);
    if (isTime) cursor.addEventListener("move", this.onMove);
  }

  /** It is no longer in the page. */
  close() {
    all.delete(this);
    cursor.removeEventListener("move", this.onMove);
  }

  /** What is said of the whole drawing to who does not see it. */
  describe(text) {
    this.frame.setAttribute("aria-label", text);
  }

  /** Names and colours; a line is drawn as a line, an area as an area. */
  showLegend(entries) {
    const said = JSON.stringify(entries);
    if (said === this.#legend) return;
    this.#legend = said;
    fill(
      this.legend,
      entries.map(({ name, word, kind = "area", sign = null }) => {
        const look = kind === "area" && isHatched(word) ? "hatched" : kind;
        const swatch = el("span", { class: `swatch ${look}`, "aria-hidden": "true" }, sign);
        swatch.style.setProperty("--swatch", `var(--c-${slug(word)})`);
        return el("li", {}, swatch, name);
      }),
    );
  }

  setHeight(height) {
    if (height === this.height) return;
    this.height = height;
    this.frame.style.height = `${height}px`;
  }

  redraw() {
    this.#wanted();
  }

  #fit(canvas) {
    const { clientWidth: width, clientHeight: height } = this.frame;
    const ratio = window.devicePixelRatio || 1;
    if (
      canvas.width !== Math.round(width * ratio) ||
      canvas.height !== Math.round(height * ratio)
    ) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height };
  }

  #draw() {
    if (!this.element.isConnected || this.frame.clientWidth === 0) return;
    const { context, width, height } = this.#fit(this.base);
    this.draw(context, width, height);
    this.#drawOver();
  }

  #drawOver() {
    if (!this.element.isConnected || this.frame.clientWidth === 0) return;
    const { context, height } = this.#fit(this.over);
    const found = this.#found();
    const text = found ? found.text : "";
    // The same said again would be read out again.
    if (this.readout.textContent !== text) this.readout.textContent = text;
    if (found) {
      context.fillStyle = colour("cursor");
      context.fillRect(Math.round(found.x), 0, 1, height);
    }
    if (this.#drag && Math.abs(this.#drag.to - this.#drag.from) >= LEAST_DRAG) {
      const start = Math.min(this.#drag.from, this.#drag.to);
      context.globalAlpha = 0.2;
      context.fillRect(start, 0, Math.abs(this.#drag.to - this.#drag.from), height);
      context.globalAlpha = 1;
    }
  }

  #found() {
    if (this.isTime && cursor.at !== null) return this.read(null, cursor.at);
    return this.#here === null ? null : this.read(this.#here, null);
  }

  #point(x) {
    this.#here = x;
    if (this.isTime) cursor.move(x === null ? null : (this.read(x, null)?.at ?? null));
    this.#wantedOver();
  }

  #listen() {
    const place = (event) => event.clientX - this.frame.getBoundingClientRect().left;
    this.frame.addEventListener("pointermove", (event) => {
      if (this.#drag) this.#drag.to = place(event);
      this.#point(place(event));
    });
    this.frame.addEventListener("pointerleave", () => this.#point(null));
    this.frame.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || (!this.onSpan && !this.onPick)) return;
      this.frame.setPointerCapture(event.pointerId);
      this.#drag = { from: place(event), to: place(event) };
    });
    this.frame.addEventListener("pointercancel", () => {
      this.#drag = null;
      this.#wantedOver();
    });
    this.frame.addEventListener("pointerup", () => this.#dropped());
    this.frame.addEventListener("keydown", (event) => this.#key(event));
    this.frame.addEventListener("blur", () => this.#point(null));
  }

  #dropped() {
    const drag = this.#drag;
    this.#drag = null;
    if (!drag) return;
    const ends = [drag.from, drag.to].map((x) => this.read(x, null)?.at ?? null);
    if (ends.includes(null)) return;
    if (Math.abs(drag.to - drag.from) >= LEAST_DRAG)
      this.onSpan?.([Math.min(...ends), Math.max(...ends)]);
    else this.onPick?.(ends[1]);
    this.#wantedOver();
  }

  #key(event) {
    const places = this.places(this.frame.clientWidth);
    if (event.key === "Escape") {
      this.#point(null);
      return;
    }
    if (event.key === "Enter" && this.onPick) {
      const at = this.#found()?.at ?? null;
      if (at !== null) this.onPick(at);
      return;
    }
    if (event.key in CLOSER && this.onSpan && this.domain()) {
      const middle = this.#found()?.at ?? null;
      this.onSpan(around(this.domain(), middle, CLOSER[event.key]));
      return;
    }
    if (places.length === 0) return;
    const now = this.#found()?.x ?? null;
    const next = stepped(places, now, event.key, event.shiftKey ? 10 : 1);
    if (next === null) return;
    event.preventDefault();
    this.#point(next);
  }
}

const CLOSER = { "+": 0.5, "=": 0.5, "-": 2 };

/** An extent so many times as wide, about a place in it or about its middle; never before 0. */
export function around([low, high], place, times) {
  const middle = place ?? (low + high) / 2;
  const start = Math.max(0, middle - (middle - low) * times);
  return [start, start + (high - low) * times];
}

/** The pixel that a key leads to from where the cursor is; null for keys that lead nowhere. */
export function stepped(places, now, key, by) {
  const last = places.length - 1;
  if (key === "Home") return places[0];
  if (key === "End") return places[last];
  if (key !== "ArrowLeft" && key !== "ArrowRight") return null;
  if (now === null) return key === "ArrowRight" ? places[0] : places[last];
  // Points within half a pixel are one place, or the cursor would never leave them.
  if (key === "ArrowRight") {
    const after = places.filter((place) => place > now + 0.5);
    return after[Math.min(by, after.length) - 1] ?? places[last];
  }
  const before = places.filter((place) => place < now - 0.5);
  return before[Math.max(0, before.length - by)] ?? places[0];
}

// The page: its address decides what is shown, and news of runs go to whoever shows them.

import { parsed, spelled } from "./address.js";
import * as api from "./api.js";
import { forgetColours } from "./colours.js";
import { el, fill } from "./dom.js";
import { ExecutionsView } from "./executions.js";
import { redrawAll } from "./figure.js";
import { duration } from "./format.js";
import { RunView } from "./runview.js";
import { TreeView } from "./tree.js";

const MOST_LINES = 200;
const ADDRESS_MS = 150;
const byId = (name) => document.getElementById(name);

class App {
  constructor(runs) {
    this.runs = named(runs);
    this.place = parsed(location.hash);
    this.told = new Set();
    const go = (change, how) => this.go(change, how);
    const names = new Map(this.runs.map((run) => [run.key, run.name]));
    this.views = {
      run: new RunView(go, problem, names),
      executions: new ExecutionsView(go),
      tree: new TreeView(go),
    };
    fill(
      byId("view"),
      Object.values(this.views).map((view) => view.element),
    );
    this.#choices();
    document.querySelector(".skip").addEventListener("click", (event) => {
      // The part behind the # is the page's own address.
      event.preventDefault();
      byId("view").focus();
    });
    window.addEventListener("hashchange", () => {
      clearTimeout(this.writing);
      this.#show();
    });
    this.#show();
    api.follow((news) => this.#heard(news), connected);
  }

  /** Changes the address; quietly, where somebody drags and no step should be gone back to. */
  go(change, { isQuiet = false } = {}) {
    const text = spelled({ ...this.place, ...change });
    if (text === spelled(this.place)) return;
    if (isQuiet) {
      this.#show(text);
      this.#write(text);
    } else location.hash = text;
  }

  /** The address follows whoever drags a little later: browsers refuse many changes in a row. */
  #write(text) {
    clearTimeout(this.writing);
    this.writing = setTimeout(() => history.replaceState(null, "", text), ADDRESS_MS);
  }

  #show(text = location.hash) {
    const place = parsed(text);
    const known = new Set(this.runs.map((run) => run.key));
    place.runs = place.runs.filter((key) => known.has(key));
    if (!place.runs.length) place.runs = [this.runs[0].key];
    this.place = place;
    if (place.view === "tree" && place.execution === null) place.view = "executions";
    for (const [name, view] of Object.entries(this.views))
      view.element.hidden = name !== place.view;
    for (const tab of byId("views").querySelectorAll("a")) {
      const isHere = tab.dataset.view === place.view;
      if (isHere) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
      tab.href = spelled({ ...place, view: tab.dataset.view, offset: null });
      tab.hidden = tab.dataset.view === "tree" && place.execution === null;
    }
    byId("first").value = place.runs[0];
    byId("second").value = place.runs[1] ?? "";
    const [first] = place.runs;
    document.title = `${this.runs.find((run) => run.key === first).name} – Gyre`;
    if (place.view === "run") this.views.run.show(place);
    if (place.view === "executions") this.views.executions.show(first, place);
    if (place.view === "tree") this.views.tree.show(first, place.execution, place.box);
  }

  #choices() {
    const options = this.runs.map((run) => [
      run.key,
      run.is_simulated ? `${run.name}, simulated` : run.name,
    ]);
    fill(
      byId("first"),
      options.map(([value, text]) => el("option", { value }, text)),
    );
    fill(
      byId("second"),
      el("option", { value: "" }, "nothing"),
      options.map(([value, text]) => el("option", { value }, text)),
    );
    const changed = () => {
      const chosen = [byId("first").value, byId("second").value].filter(Boolean);
      this.go({
        runs: [...new Set(chosen)],
        at: null,
        from: null,
        to: null,
        execution: null,
        box: null,
      });
    };
    for (const name of ["first", "second"]) byId(name).addEventListener("change", changed);
    byId("compare").hidden = this.runs.length < 2;
  }

  #heard(news) {
    this.views.run.heard(news);
    const name = this.runs.find((run) => run.key === news.run)?.name ?? news.run;
    const list = byId("lines");
    for (const line of news.lines ?? []) {
      // Whoever connects again is told the newest once more.
      const what = `${news.run} ${line.at_s} ${line.text}`;
      if (this.told.has(what)) continue;
      this.told.add(what);
      list.prepend(
        el(
          "li",
          {},
          el("time", {}, duration(line.at_s)),
          ` ${this.runs.length > 1 ? `${name}: ` : ""}${line.text}`,
        ),
      );
    }
    while (list.childElementCount > MOST_LINES) list.lastElementChild.remove();
    if (
      this.place.view === "executions" &&
      this.place.at === null &&
      this.place.runs[0] === news.run
    )
      this.#listed();
  }

  #listed() {
    if (this.waiting) return;
    this.waiting = setTimeout(() => {
      this.waiting = null;
      if (this.place.view === "executions")
        this.views.executions.show(this.place.runs[0], this.place);
    }, 2000);
  }
}

/** Runs of one name are told apart by their keys. */
function named(runs) {
  const twice = (name) => runs.filter((run) => run.name === name).length > 1;
  return runs.map((run) => (twice(run.name) ? { ...run, name: `${run.name} (${run.key})` } : run));
}

function problem(text) {
  const box = byId("problem");
  box.hidden = text === null;
  if (text !== null && box.textContent !== text) box.textContent = text;
}

function connected(isThere) {
  byId("connection").textContent = isThere ? "connected" : "not connected; trying again";
  byId("connection").classList.toggle("problem", !isThere);
}

/** Light, dark, or as the machine has it; kept for the next time. */
function themes() {
  const choice = byId("theme");
  const use = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    forgetColours();
    redrawAll();
  };
  try {
    choice.value = localStorage.getItem("theme") ?? "auto";
  } catch {
    choice.value = "auto";
  }
  choice.addEventListener("change", () => {
    try {
      localStorage.setItem("theme", choice.value);
    } catch {
      // A browser that keeps nothing shows the theme for as long as the page is open.
    }
    use(choice.value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => use(choice.value));
  use(choice.value);
}

themes();
try {
  const { runs } = await api.runs();
  new App(runs);
} catch (error) {
  problem(error.message);
}

// An execution at a glance, above its tree: its numbers, and the trajectories that were drawn.

import { el } from "./dom.js";
import { compact, count, joined, many, short } from "./format.js";
import { pairs } from "./table.js";

/** `again()` reads a log that may have grown; `mark(boxes)` shows a path, or none. */
export function treeHead(data, { again, mark }) {
  const { summary, draw, failures, unfinished } = data;
  const state = joined([
    summary.sealed ? "sealed" : "open",
    summary.complete ? "complete" : "incomplete",
  ]);
  const odd = [
    ...failures.map(({ call, reason }) => `call ${call} failed: ${reason}`),
    ...unfinished.map((call) => `call ${call} was opened, and its end is unknown`),
  ];
  return [
    el(
      "h2",
      {},
      `${summary.execution} `,
      el("span", { class: "note" }, `${state} `),
      summary.sealed ? null : el("button", { type: "button", on: { click: again } }, "Read again"),
    ),
    pairs(numbers(data)),
    odd.length ? without(odd) : null,
    el(
      "div",
      { class: "draws", role: "group", "aria-label": "Trajectories that were drawn" },
      el(
        "span",
        { class: "note" },
        drawnWith(draw, data.is_held_out),
      ),
      buttons(data.trajectories, mark),
    ),
  ];
}

/** How trajectories are chosen; of what is held out none is trained. */
function drawnWith({ seed, max_trajectories: most }, isHeldOut) {
  const how = `with seed ${seed}, at most ${most ?? "all"}:`;
  return isHeldOut ? `held out, never trained; would be drawn ${how}` : `drawn ${how}`;
}

function numbers({ summary, trajectories, is_held_out: isHeldOut }) {
  const tally = (counted) =>
    joined(Object.entries(counted).map(([name, number]) => `${count(number)} ${name}`)) || "none";
  const taken = trajectories.reduce((sum, one) => sum + one.targets, 0);
  const calls = [
    count(summary.calls),
    `${count(summary.committed)} committed`,
    summary.failed && `${count(summary.failed)} failed`,
    summary.unfinished && `${count(summary.unfinished)} unfinished`,
  ];
  const tokens = [
    `${count(summary.unique_tokens)} stored`,
    `${count(summary.sent_tokens)} sent`,
    summary.ratio !== null && `${short(summary.ratio)} times as many`,
  ];
  return [
    ["calls", joined(calls)],
    ["leaves", tally(summary.leaves)],
    ["forks", tally(summary.forks)],
    ["flags", tally(summary.flags)],
    ["tokens", joined(tokens)],
    ["targets", targets(taken, summary.targets, isHeldOut)],
    ["model", summary.model?.split("/").at(-1) ?? "–"],
  ];
}

function targets(taken, all, isHeldOut) {
  if (isHeldOut) return "none: it is held out";
  return `${count(taken)} drawn of ${count(all)} that could be`;
}

function without(odd) {
  return el(
    "details",
    {},
    el("summary", {}, many(odd.length, "call without output", "calls without output")),
    el("ul", {}, ...odd.map((text) => el("li", {}, text))),
  );
}

/** One is pressed at a time, or none. */
function buttons(trajectories, mark) {
  const made = trajectories.map((one) => {
    const what = `${compact(one.targets)} targets of ${compact(one.tokens)} tokens`;
    const text = `${one.place}: ${joined([joined([one.role, one.agent], " "), what])}`;
    return el("button", { type: "button", "aria-pressed": "false" }, text);
  });
  made.forEach((button, at) => {
    button.addEventListener("click", () => {
      const isOn = button.getAttribute("aria-pressed") === "true";
      for (const other of made) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(!isOn));
      mark(isOn ? [] : trajectories[at].boxes);
    });
  });
  return made;
}

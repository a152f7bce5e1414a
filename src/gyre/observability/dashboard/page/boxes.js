// A box of a tree as it is seen and as it is read out.

import { el } from "./dom.js";
import { calendar, compact, count, duration, joined, many } from "./format.js";

/** Numbers of calls in few characters: 3, 3–9, or 3..20 (7) where others are between them. */
export function numbered(calls) {
  const [first, last] = [calls[0], calls.at(-1)];
  if (calls.length === 1) return `${first}`;
  return last - first === calls.length - 1
    ? `${first}–${last}`
    : `${first}..${last} (${calls.length})`;
}

export function prefaceInside(box) {
  return [
    el("strong", {}, "preface"),
    el("span", { class: "note" }, many(box.new_tokens, "token")),
  ];
}

export function callsInside(box) {
  const notes = [
    box.fork === null ? null : `fork: ${box.fork}`,
    box.is_committed ? null : "uncommitted",
    box.cut === null ? null : `${count(box.cut)} of ${count(box.output_tokens)} came back`,
    ["stop", "tool_calls"].includes(box.finish) ? null : `ended by ${box.finish}`,
    ...Object.entries(box.flags).map(([flag, number]) => `${number} ${flag}`),
  ].filter(Boolean);
  return [
    el(
      "div",
      { class: "line" },
      el("strong", {}, numbered(box.calls)),
      el("span", { class: "role" }, box.agent ? `${box.role} · ${box.agent}` : box.role),
      box.versions.length ? el("span", { class: "note" }, versions(box.versions)) : null,
      box.drawn
        ? el("span", { class: "badge", title: `leaf of draw ${box.drawn}` }, `${box.drawn}`)
        : box.is_leaf
          ? el("span", { class: "badge", title: "a leaf that no draw took" }, "leaf")
          : null,
    ),
    notes.length ? el("div", { class: "line fork" }, notes.join(", ")) : null,
    el(
      "div",
      { class: "line note" },
      joined([
        `+${compact(box.new_tokens)} in`,
        `${compact(box.output_tokens)} sampled`,
        box.targets ? many(box.targets, "target") : "no targets",
      ]),
    ),
    el("div", { class: "line words" }, box.first_words || "–"),
  ];
}

/** Of the weights that sampled it: v3, or v3–5. */
function versions(found) {
  const [first, last] = [found[0], found.at(-1)];
  return first === last ? `v${first}` : `v${first}–${last}`;
}

/** A box in words, for who does not see it. */
export function described(box) {
  if (box.kind === "preface") return `preface of ${many(box.new_tokens, "token")}`;
  return [
    `${box.calls.length === 1 ? "call" : "calls"} ${numbered(box.calls)}`,
    box.agent ? `${box.role} ${box.agent}` : box.role,
    box.fork === null ? null : `fork: ${box.fork}`,
    box.is_summary ? "a summary" : null,
    box.is_committed ? null : "uncommitted",
    `${count(box.new_tokens)} tokens new`,
    `${count(box.output_tokens)} sampled`,
    `${count(box.path_tokens)} on its path`,
    box.targets ? `${count(box.targets)} targets of draw ${box.draws.join(", ")}` : "no targets",
    box.versions.length ? `version ${box.versions.join(", ")}` : null,
    `took ${duration(box.closed_at - box.opened_at)}, until ${calendar(box.closed_at)}`,
  ]
    .filter(Boolean)
    .join("; ");
}

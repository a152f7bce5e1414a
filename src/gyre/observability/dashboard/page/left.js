// What an execution left behind: its end, every assessment, its files, and what programs printed.

import { el } from "./dom.js";
import { bytes, calendar, count, duration, joined, many, short } from "./format.js";
import { pairs, table } from "./table.js";

/** All of it, or a sentence where the run keeps nothing. */
export function leftBehind(left) {
  if (left === null)
    return el("p", { class: "note" }, "Of this execution only its calls are kept.");
  return [
    el("h3", {}, "Outcome"),
    outcome(left),
    el(
      "details",
      {},
      el("summary", {}, "Instruction"),
      el("pre", { class: "scrolled", tabIndex: 0 }, left.instruction),
    ),
    assessments(left.assessments),
    workspace(left.workspace),
    printed("What the agent program printed", left.output),
    printed("What the last evaluation printed", left.evaluation),
  ];
}

function outcome(left) {
  const closed = joined([left.outcome, left.outcome_reason], ": ");
  const took = joined([duration(left.elapsed_s), `of ${duration(left.agent_s)}`], " ");
  return pairs([
    ["task", left.task],
    ["ended", left.ending === null ? "not yet" : `${left.ending}: ${left.ending_reason}`],
    ["took", left.elapsed_s === null ? "–" : took],
    ["closed as", closed || "not closed"],
    ["score", left.score === null ? "none, which is not 0" : short(left.score, 6)],
    ["facts", joined(left.facts.map((one) => `${one.fact} ${calendar(one.at)}`)) || "none"],
  ]);
}

function assessments(rows) {
  if (rows.length === 0) return el("p", { class: "note" }, "It was not assessed.");
  return table({
    caption: "Assessments",
    head: ["attempt", "step", "status", "score", "evaluator", "state", "reason"],
    rows: rows.map((one) => [
      count(one.attempt),
      one.step === null ? "–" : count(one.step + 1),
      one.status,
      short(one.score, 6),
      one.evaluator,
      one.reference.slice(0, 12),
      one.reason ?? "–",
    ]),
    numbers: [0, 1, 3],
  });
}

function workspace(found) {
  if (found === null) return el("p", { class: "note" }, "Its workspace is not kept.");
  const notes = [
    found.is_begin_known ? null : "The task's files are gone, so everything counts as added.",
    found.num_left_out ? `${many(found.num_left_out, "more file")} changed.` : null,
    found.is_cut ? "There are more files than were looked at." : null,
  ].filter(Boolean);
  return el(
    "section",
    { "aria-label": "Workspace" },
    el(
      "h3",
      {},
      "Workspace",
      el("span", { class: "note" }, ` ${many(found.files.length, "file")} changed`),
    ),
    notes.map((text) => el("p", { class: "note" }, text)),
    found.files.map(file),
  );
}

const SIGNS = { added: "+", removed: "−", changed: "~" };

function file(one) {
  const size = one.after_bytes === null ? bytes(one.before_bytes) : bytes(one.after_bytes);
  const head = el(
    "summary",
    {},
    el("span", { class: `change ${one.change}` }, SIGNS[one.change]),
    ` ${one.path} `,
    el("span", { class: "note" }, `${one.change}, ${size}${one.note ? `, ${one.note}` : ""}`),
  );
  if (one.lines === null) return el("details", { class: "file" }, head);
  return el(
    "details",
    { class: "file" },
    head,
    el(
      "pre",
      { class: "diff scrolled", tabIndex: 0 },
      one.lines.map((line) => el("span", { class: kind(line) }, `${line}\n`)),
    ),
  );
}

/** What a line of a unified difference is. */
export function kind(line) {
  if (line.startsWith("@@")) return "hunk";
  if (line.startsWith("+")) return "plus";
  return line.startsWith("-") ? "minus" : "same";
}

function printed(title, output) {
  if (output === null) return null;
  const note = output.left_out_bytes
    ? ` the last of ${bytes(output.left_out_bytes + output.text.length)}`
    : "";
  return el(
    "details",
    {},
    el("summary", {}, title, el("span", { class: "note" }, note)),
    el("pre", { class: "scrolled", tabIndex: 0 }, output.text || "nothing"),
  );
}

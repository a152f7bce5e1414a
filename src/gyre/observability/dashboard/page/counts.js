// The panels that count: durations by ending, ages of groups beside a prediction, sizes of trees.

import { Bars } from "./bars.js";
import { compact, count, duration, short } from "./format.js";

/** As those of panels.js. */
export const COUNTED = [
  { id: "durations", title: "Durations", needs: ["durations"], isWide: true, make: durations },
  { id: "staleness", title: "Staleness", needs: ["staleness"], make: staleness },
  { id: "trees", title: "Trees of executions", needs: ["trees"], isWide: true, make: trees },
];

const ENDINGS = ["completed", "timed-out", "crashed", "cancelled", "never-started"];

/** A histogram as parts by ending, in their order; `called` are other names for them. */
function parted(histogram, called) {
  const names = Object.keys(histogram.counts);
  const ordered = [
    ...names.filter((name) => !ENDINGS.includes(name)),
    ...ENDINGS.filter((name) => names.includes(name)),
  ];
  return ordered.map((name) => ({
    name: called[name] ?? name,
    word: name,
    counts: histogram.counts[name],
  }));
}

function summed(histogram, format) {
  if (!histogram.num) return "None yet.";
  const { num, mean, median, p95, max } = histogram;
  const middle = `mean ${format(mean)}, median ${format(median)}`;
  return `${count(num)}; ${middle}, 95 % below ${format(p95)}, most ${format(max)}.`;
}

function showHistogram(bars, histogram, format, called = {}) {
  const text = summed(histogram, format);
  bars.figure.note.textContent = text;
  bars.show({
    edges: histogram.edges,
    parts: parted(histogram, called),
    isOpen: histogram.is_open,
    describe: text,
  });
}

function durations() {
  const each = new Bars({ title: "Duration of executions", format: duration });
  const queries = new Bars({ title: "Duration of queries", format: duration });
  return {
    figures: [each, queries],
    isGrid: true,
    show({ panels }) {
      showHistogram(each, panels.durations.executions, duration);
      showHistogram(queries, panels.durations.queries, duration, {
        all: "every member in time",
        "timed-out": "a member timed out",
      });
    },
  };
}

function staleness() {
  const bars = new Bars({
    title: "Staleness of trained groups",
    format: count,
    height: 300,
    xLabel: "versions old",
  });
  return {
    figures: [bars],
    show({ panels }) {
      const {
        histogram,
        in_order: inOrder,
        mean,
        predicted,
        whole_run: whole,
        mean_ready: ready = null,
        formula,
        identity,
      } = panels.staleness;
      const most = Math.max(
        0,
        ...histogram.map(([age]) => age),
        ...(inOrder ?? []).map(([age]) => age),
      );
      const spread = (pairs) => {
        const by = new Map(pairs);
        return Array.from({ length: most + 1 }, (_, age) => by.get(age) ?? 0);
      };
      const isKept = identity.holds ? "as" : "not as";
      const text = [
        `Mean ${short(mean)}`,
        predicted === null ? null : `predicted ${short(predicted)} in the long run (${formula})`,
        whole === null ? null : `${short(whole)} for a whole run of this length`,
        ready === null ? null : `${short(ready)} groups ready at a publication, on average`,
        `sum of ages ${count(identity.consumed)}, ${isKept} the identity asks`,
      ];
      const said = `${text.filter(Boolean).join("; ")}.`;
      bars.figure.note.textContent = said;
      bars.show({
        labels: Array.from({ length: most + 1 }, (_, age) => age),
        parts: [{ name: "groups", word: "groups", counts: spread(histogram) }],
        expected: inOrder
          ? { name: "in order of admission", word: "expected", counts: spread(inOrder) }
          : null,
        describe: said,
      });
    },
  };
}

const TREES = [
  ["tokens", "Tokens per tree", compact],
  ["sampled", "Sampled tokens per tree", compact],
  ["tool_calls", "Tool calls per execution", count],
  ["leaves", "Leaves per tree", count],
];

function trees() {
  const bars = TREES.map(([, title, format]) => new Bars({ title, format, height: 150 }));
  return {
    figures: bars,
    isGrid: true,
    show({ panels }) {
      for (const one of bars) one.element.hidden = panels.trees === null;
      if (panels.trees === null)
        return "This run has no call logs: nobody knows what its trees were.";
      TREES.forEach(([name, , format], at) => showHistogram(bars[at], panels.trees[name], format));
      const { num_read: read, num_closed: closed } = panels.trees;
      return `Read from ${count(read)} sealed call logs of ${count(closed)} closed executions.`;
    },
  };
}

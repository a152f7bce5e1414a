// The panels of a run over time: what cells did, how high the water stood, what waited for what.

import { el } from "./dom.js";
import { count, duration, short } from "./format.js";
import { Plot } from "./plot.js";
import { extent } from "./scale.js";
import { Shares } from "./shares.js";
import { table } from "./table.js";
import { Timeline } from "./timeline.js";

/**
 * A panel names what it needs of a story and makes figures for one run: `make(hands)` gives
 * { figures, show(story, { x, until, stories }) }. Those of several runs at
 * once are in curves.js, and those that count in counts.js.
 */
export const OVER_TIME = [
  {
    id: "roles",
    title: "Roles of cells",
    needs: ["roles", "steps", "publications", "checkpoints", "faults"],
    isWide: true,
    make: roles,
  },
  { id: "water", title: "Waterlevel and capacity", needs: ["water"], make: water },
  { id: "supply", title: "Supply and the dwell timer", needs: ["supply"], make: supply },
  { id: "groups", title: "Groups by state", needs: ["groups"], make: groups },
  { id: "idle", title: "Where time went", needs: ["idle"], isWide: true, make: idle },
  { id: "transitions", title: "Changes of role", needs: ["transitions"], make: transitions },
];

/** Columns as rows of a table, by name and how each is written. */
function rowsOf(columns, formats) {
  const names = Object.keys(formats);
  const num = columns[names[0]]?.length ?? 0;
  return {
    head: names.map((name) => name.replace(/_s$/, "").replaceAll("_", " ")),
    rows: Array.from({ length: num }, (_, at) =>
      names.map((name) => formats[name](columns[name]?.[at] ?? null)),
    ),
    numbers: names.map((_, at) => at),
  };
}

function roles(hands) {
  const view = new Timeline({
    title: "Roles of cells",
    note: "At the end of a row, its part of time in training. A click goes there, a drag closer.",
    ...hands,
  });
  return {
    figures: [view],
    show({ panels }, { x }) {
      const { cells, engines, states } = panels.roles;
      view.show({
        rows: [
          ...cells.map((one) => ({
            name: one.kind === "core" ? `cell ${one.cell}, core` : `cell ${one.cell}`,
            spans: one.spans,
            share: one.training_share,
          })),
          ...engines.map((one) => ({
            name: `engine ${one.engine}`,
            spans: one.spans,
            share: null,
          })),
        ],
        states,
        x,
        steps: panels.steps.at_s,
        publications: panels.publications.at_s,
        marks: happenings(panels),
      });
    },
  };
}

/** What happened beside the course of things: of a cell or an engine in its row. */
function happenings({ faults, checkpoints }) {
  return [
    ...checkpoints.at_s.map((at, row) => ({
      at,
      row: null,
      kind: "checkpoint",
      text: `checkpoint of version ${count(checkpoints.version[row])} is durable`,
    })),
    ...faults.rows.map((one) => ({
      at: one.at_s,
      // Engines stand below the cells, and are numbered behind them.
      row: one.cell ?? one.engine,
      kind: "fault",
      text: one.text,
    })),
  ];
}

function water(hands) {
  const plot = new Plot({
    title: "Waterlevel and capacity",
    note: "A cell may enter training while the waterlevel is not above what the others hold.",
    yFormat: count,
    yKind: "whole",
    height: 300,
    ...hands,
  });
  return {
    figures: [plot],
    show({ panels }, { x, until, stories }) {
      const rows = panels.water;
      const step = (name, word, ys, more = {}) => ({
        kind: "steps",
        name,
        word,
        xs: rows.at_s,
        ys,
        ...more,
      });
      plot.show({
        layers: [
          {
            kind: "area",
            name: "waterlevel",
            word: "waterlevel",
            xs: rows.at_s,
            ys: rows.waterlevel,
          },
          step("running", "running", rows.running, { width: 1 }),
          step("capacity", "capacity", rows.capacity, { width: 2 }),
          step("admission line", "admission line", rows.line, { dash: [6, 4] }),
          ...(rows.evaluations.some(Boolean)
            ? [step("evaluations", "evaluations", rows.evaluations, { width: 1 })]
            : []),
        ],
        x,
        until,
        y: extent(
          stories.flatMap(({ panels: { water: one } }) => [one.waterlevel, one.capacity, one.line]),
          { zero: true },
        ),
        table: () =>
          rowsOf(rows, {
            at_s: duration,
            waterlevel: count,
            running: count,
            capacity: count,
            line: count,
            evaluations: count,
          }),
      });
    },
  };
}

function supply(hands) {
  const level = new Plot({
    title: "Supply",
    note: "Ready groups that the batch has use for, against what a cell needs to enter.",
    yFormat: (value) => short(value),
    height: 140,
    ...hands,
  });
  const timer = new Plot({
    title: "Dwell timer",
    note: "How long supply has held; from tau on the next cell may enter.",
    yFormat: duration,
    yKind: "time",
    height: 110,
    ...hands,
  });
  return {
    figures: [level, timer],
    show({ panels, shape }, { x, until }) {
      const { rows, threshold, dwell_s: dwell, entered } = panels.supply;
      const marks = {
        kind: "marks",
        name: "a cell entered",
        word: "entering",
        alpha: 0.4,
        xs: entered.map(([at]) => at),
      };
      const behind = () =>
        rowsOf(rows, {
          at_s: duration,
          supply: short,
          ready: count,
          needed: count,
          held_s: duration,
        });
      level.show({
        layers: [
          { kind: "area", name: "supply", word: "supply", xs: rows.at_s, ys: rows.supply },
          { kind: "steps", name: "ready", word: "ready", xs: rows.at_s, ys: rows.ready, width: 1 },
          {
            kind: "level",
            name: `threshold (${short(threshold)})`,
            word: "threshold",
            y: threshold,
          },
          marks,
        ],
        x,
        until,
        table: behind,
      });
      timer.show({
        layers: [
          { kind: "slope", name: "held", word: "held", ...dwelt(rows, until) },
          {
            kind: "level",
            name: `tau (${duration(shape.supply_dwell_s ?? dwell)})`,
            word: "threshold",
            y: dwell,
          },
          marks,
        ],
        x,
        until,
        table: behind,
      });
    },
  };
}

/** Corners of the timer, which grows between rows by itself and falls when supply does. */
export function dwelt({ at_s: at, since_s: since }, until) {
  const corners = at.flatMap((from, row) => {
    const held = (time) => [time, since[row] === null ? 0 : time - since[row]];
    return [held(from), held(Math.max(from, at[row + 1] ?? until))];
  });
  return { xs: corners.map(([time]) => time), ys: corners.map(([, held]) => held) };
}

const GROUP_STATES = ["queued", "running", "assessing", "ready", "assigned"];

function groups(hands) {
  const plot = new Plot({
    title: "Groups by state",
    note: "Every group that was admitted and not yet trained.",
    yFormat: count,
    yKind: "whole",
    height: 350,
    ...hands,
  });
  return {
    figures: [plot],
    show({ panels }, { x, until, stories }) {
      const rows = panels.groups;
      const heights = ({ panels: { groups: one } }) =>
        one.at_s.map((_, at) => GROUP_STATES.reduce((sum, name) => sum + (one[name][at] ?? 0), 0));
      plot.show({
        layers: [
          {
            kind: "stack",
            xs: rows.at_s,
            parts: GROUP_STATES.map((name) => ({ name, word: `group ${name}`, ys: rows[name] })),
          },
        ],
        x,
        until,
        y: extent(stories.map(heights), { zero: true }),
        table: () =>
          rowsOf(rows, {
            at_s: duration,
            queued: count,
            running: count,
            assessing: count,
            ready: count,
            assigned: count,
          }),
      });
    },
  };
}

function idle(hands) {
  const bars = new Shares({
    title: "Where time went, by cell",
    note: "The whole time of each cell by what it did or waited for.",
  });
  const plot = new Plot({
    title: "Where time went, over the run",
    note: "Of all cells and engines together, as parts of their time.",
    yFormat: (value) => `${short(value * 100)} %`,
    ...hands,
  });
  return {
    figures: [bars, plot],
    show({ panels }, { x, until }) {
      const { causes, cells, engines, over_time: over, total } = panels.idle;
      bars.show({
        causes,
        rows: [
          ...cells.map((one) => ({ name: `cell ${one.cell}`, seconds: one.seconds })),
          ...engines.map((one) => ({ name: `engine ${one.engine}`, seconds: one.seconds })),
          { name: "all", seconds: total },
        ],
      });
      const sums = over.at_s.map((_, at) =>
        causes.reduce((sum, cause) => sum + over.seconds[cause][at], 0),
      );
      const parts = causes
        .filter((cause) => over.seconds[cause].some(Boolean))
        .map((cause) => ({
          name: cause,
          word: cause,
          ys: over.seconds[cause].map((one, at) => (sums[at] ? one / sums[at] : 0)),
        }));
      plot.show({
        layers: [{ kind: "stack", xs: over.at_s, parts }],
        x,
        until,
        y: [0, 1],
        table: () => ({
          head: ["from", ...causes],
          rows: over.at_s.map((at, row) => [
            duration(at),
            ...causes.map((cause) => duration(over.seconds[cause][row])),
          ]),
          numbers: [0, ...causes.map((_, at) => at + 1)],
        }),
      });
    },
  };
}

function transitions(hands) {
  const plot = new Plot({
    title: "Seconds of each change of role",
    note: "",
    yFormat: duration,
    yKind: "time",
    height: 140,
    ...hands,
  });
  const box = el("div", {
    class: "scrolled",
    tabIndex: 0,
    role: "region",
    "aria-label": "Phases of changes of role",
  });
  return {
    figures: [plot],
    beside: box,
    show({ panels }, { x, until }) {
      const { rows, phases } = panels.transitions;
      const ways = [
        ["into training", true, "training"],
        ["home", false, "serving"],
      ];
      plot.show({
        layers: ways.map(([name, isInto, word]) => {
          const kept = rows.at_s
            .map((_, at) => at)
            .filter((at) => Boolean(rows.into_training[at]) === isInto);
          return {
            kind: "dots",
            name,
            word,
            xs: kept.map((at) => rows.at_s[at]),
            ys: kept.map((at) => rows.seconds[at]),
          };
        }),
        x,
        until,
        table: () =>
          rowsOf(rows, {
            at_s: duration,
            cell: count,
            into_training: (value) => (value ? "into training" : "home"),
            seconds: duration,
          }),
      });
      const lines = Object.entries(phases).flatMap(([way, times]) =>
        Object.entries(times).map(([phase, mean]) => [way, phase, duration(mean)]),
      );
      box.hidden = lines.length === 0;
      box.replaceChildren(
        table({
          caption: "Mean time of each phase",
          head: ["way", "phase", "mean"],
          rows: lines,
          numbers: [2],
        }),
      );
    },
  };
}

// A run at one moment: where its batch stands, what cells do, what keeps the next from training.

import { el, fill, slug } from "./dom.js";
import { count, duration, joined, share, short } from "./format.js";

/** Tiles of numbers and a row of cells, filled again with every moment. */
export class Moment {
  constructor() {
    this.tiles = el("dl", { class: "tiles" });
    this.cells = el("ul", { class: "cells", "aria-label": "Cells and engines" });
    this.element = el("div", { class: "moment" }, this.tiles, this.cells);
  }

  show(moment, shape) {
    fill(
      this.tiles,
      tiles(moment, shape).map(([name, value, more]) => tile(name, value, more)),
    );
    fill(
      this.cells,
      moment.cells.map((one) =>
        cell(one.kind === "core" ? `cell ${one.cell}, core` : `cell ${one.cell}`, one, moment.at_s),
      ),
      moment.engines.map((one) => cell(`engine ${one.engine}`, one, moment.at_s)),
    );
  }
}

/** [name, value, remark] of each tile. */
export function tiles(moment, shape) {
  const { executions, groups } = moment;
  const steps = shape.steps === null ? "" : ` of ${count(shape.steps)}`;
  return [
    [
      "step",
      `${count(moment.version)}${steps}`,
      `published ${count(moment.published)}, ${moment.phase}`,
    ],
    [
      "batch",
      `${count(moment.assigned)} of ${count(moment.assigned + moment.needed)}`,
      `${count(moment.ready)} more ready`,
    ],
    [
      "waterlevel",
      `${count(moment.waterlevel)} of ${count(moment.capacity)}`,
      `admission line ${count(moment.line)}`,
    ],
    [
      "running",
      count(moment.running),
      joined([
        `${count(moment.queued)} queued`,
        moment.evaluations && `${count(moment.evaluations)} evaluations`,
      ]),
    ],
    ["supply", short(moment.supply), held(moment, shape)],
    [
      "next cell",
      moment.entering.may ? "may enter" : "stays",
      moment.entering.why === null
        ? ""
        : `because of ${REASONS[moment.entering.why] ?? moment.entering.why}`,
    ],
    [
      "groups",
      `${count(groups.trained)} trained`,
      joined([
        `${count(groups.running)} running`,
        `${count(groups.assessing)} assessed`,
        groups.void && `${count(groups.void)} void`,
      ]),
    ],
    [
      "executions",
      `${count(executions.closed)} closed`,
      `of ${count(executions.dispatched)} dispatched`,
    ],
    ...(moment.use ? [used(moment.use)] : []),
    ["left", moment.left_s === null ? "–" : duration(moment.left_s), "if steps go on as they did"],
  ];
}

function used({ cores, busy }) {
  const all = Object.values(cores).reduce((sum, one) => sum + (one ?? 0), 0);
  return [
    "use",
    `${short(all, 2)} cores`,
    busy === null ? "devices not measured" : `devices ${share(busy)} busy`,
  ];
}

const REASONS = {
  waterlevel: "the waterlevel",
  supply: "too little supply",
  dwell: "the dwell timer",
  switching: "another that switches",
  "burst end": "the end of the burst",
  "nobody home": "nobody being home",
  over: "the end of the run",
};

function held(moment, shape) {
  if (moment.supply_since_s === null) return `below ${short(shape.supply_groups)}`;
  const since = moment.at_s - moment.supply_since_s;
  return `held ${duration(since)} of ${duration(shape.supply_dwell_s)}`;
}

function tile(name, value, more) {
  return el(
    "div",
    {},
    el("dt", {}, name),
    el("dd", {}, el("strong", {}, value), more ? el("span", { class: "note" }, more) : null),
  );
}

function cell(name, one, now) {
  const meter = el("meter", {
    min: 0,
    max: Math.max(1, one.capacity),
    value: Math.min(one.load, one.capacity),
    "aria-label": `load of ${name}`,
  });
  return el(
    "li",
    { class: `cell state-${slug(one.state)}` },
    el("strong", {}, name),
    el("span", { class: "state" }, one.state),
    el("span", { class: "note" }, `for ${duration(now - one.since_s)}`),
    el("span", { class: "load" }, meter, ` ${count(one.load)} of ${count(one.capacity)}`),
  );
}

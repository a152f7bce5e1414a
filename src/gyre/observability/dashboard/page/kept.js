// The panel on weights that were kept: publications to engines, and checkpoints on the disk.

import { bytes, count, duration } from "./format.js";
import { Plot } from "./plot.js";
import { extent } from "./scale.js";

/** As those of panels.js. */
export const KEPT = [
  {
    id: "kept",
    title: "Publications and checkpoints",
    needs: ["publications", "checkpoints"],
    make: kept,
  },
];

function kept(hands) {
  const plot = new Plot({
    title: "Seconds of publications and checkpoints",
    note: "Until engines have the weights; until a checkpoint that was ordered is durable.",
    yFormat: duration,
    yKind: "time",
    ...hands,
  });
  return {
    figures: [plot],
    show({ panels: { publications, checkpoints } }, { x, until, stories }) {
      const took = seconds(publications);
      const layer = (name, word, xs, ys) => ({ kind: "dots", name, word, xs, ys });
      plot.show({
        layers: [
          layer("publication", "publication", publications.at_s, took),
          layer("checkpoint", "checkpoint", checkpoints.at_s, checkpoints.seconds),
          layer("training stood still", "fault", checkpoints.at_s, checkpoints.stalled_s),
        ].filter(({ ys }) => ys.some((value) => value !== null)),
        x,
        until,
        y: extent(
          stories.flatMap(({ panels }) => [
            seconds(panels.publications),
            panels.checkpoints.seconds,
            panels.checkpoints.stalled_s,
          ]),
          { zero: true },
        ),
        table: () => listed(publications, took, checkpoints),
      });
    },
  };
}

/** Of each publication; null where a journal does not say. */
function seconds({ save_s: save, load_s: load }) {
  return save.map((one, at) => (one === null ? null : one + load[at]));
}

function listed(publications, took, checkpoints) {
  const rows = [
    ...publications.at_s.map((at, row) => [
      at,
      "publication",
      publications.version[row],
      took[row],
      null,
      publications.num_bytes[row],
    ]),
    ...checkpoints.at_s.map((at, row) => [
      at,
      checkpoints.has_optimizer[row] ? "checkpoint" : "weights alone",
      checkpoints.version[row],
      checkpoints.seconds[row],
      checkpoints.stalled_s[row],
      checkpoints.num_bytes[row],
    ]),
  ].sort((one, other) => one[0] - other[0]);
  return {
    head: ["at", "what", "version", "took", "training stood still", "size"],
    rows: rows.map(([at, what, version, seconds, stalled, size]) => [
      duration(at),
      what,
      count(version),
      duration(seconds),
      duration(stalled),
      bytes(size),
    ]),
    numbers: [0, 2, 3, 4, 5],
  };
}

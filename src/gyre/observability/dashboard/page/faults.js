// The panel on faults: what went wrong, to whom, and how long until it was mended.

import { el } from "./dom.js";
import { count, duration } from "./format.js";
import { table } from "./table.js";

/** As those of panels.js. */
export const FAULTS = [
  { id: "faults", title: "Faults and recoveries", needs: ["faults"], make: faults },
];

function faults() {
  const box = el("div", {
    class: "scrolled",
    tabIndex: 0,
    role: "region",
    "aria-label": "Table: Faults and recoveries",
  });
  return {
    figures: [],
    beside: box,
    show({ panels }) {
      const { counts, rows } = panels.faults;
      const who = (row) =>
        row.cell !== null ? `cell ${row.cell}` : row.engine !== null ? `engine ${row.engine}` : "–";
      box.hidden = rows.length === 0;
      box.replaceChildren(
        table({
          caption: "Newest first",
          head: ["at", "what", "who", "repaired after", "in words"],
          rows: rows
            .toReversed()
            .map((row) => [
              duration(row.at_s),
              row.kind,
              who(row),
              row.repaired_s === null ? "–" : duration(row.repaired_s),
              row.text,
            ]),
          numbers: [0, 3],
        }),
      );
      const named = Object.entries(counts).map(([kind, number]) => `${kind} ${count(number)}`);
      return named.length ? `${named.join(", ")}.` : "None.";
    },
  };
}

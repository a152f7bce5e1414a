// The panel on use: processors and accelerators over time, by role, and what each cell took.

import { el } from "./dom.js";
import { duration, share, short } from "./format.js";
import { Plot } from "./plot.js";
import { extent } from "./scale.js";
import { table } from "./table.js";

/** As those of panels.js. */
export const USED = [
  { id: "use", title: "Processors and accelerators", needs: ["use"], isWide: true, make: use },
];

const cores = (value) => short(value, 2);

function use(hands) {
  const processors = new Plot({
    title: "Processors in use, in cores",
    note: "Of cells by role; executions are agent programs and what supervises them.",
    yFormat: cores,
    ...hands,
  });
  const devices = new Plot({
    title: "Accelerators at work, part of the time",
    note: "Of cells in each role: the time in which some kernel ran on their devices.",
    yFormat: share,
    height: 140,
    ...hands,
  });
  const box = el("div", {
    class: "scrolled",
    tabIndex: 0,
    role: "region",
    "aria-label": "Use by cell and role",
  });
  return {
    figures: [processors, devices],
    beside: box,
    show({ panels }, { x, until, stories }) {
      const found = panels.use;
      processors.element.hidden = box.hidden = !found.is_measured;
      devices.element.hidden = !found.has_devices;
      if (!found.is_measured) return "Not measured in this run.";
      showProcessors(processors, found, { x, until, stories });
      if (found.has_devices) showDevices(devices, found, { x, until });
      box.replaceChildren(byCell(found));
      return found.has_devices ? null : "Accelerators were not measured.";
    },
  };
}

function showProcessors(plot, found, { x, until, stories }) {
  const { over_time: over, roles, others } = found;
  const names = [...roles, ...others].filter((who) => over.cores[who].some(Boolean));
  const heights = ({ panels: { use: one } }) =>
    one.over_time.at_s.map((_, at) =>
      Object.values(one.over_time.cores).reduce((sum, values) => sum + (values[at] ?? 0), 0),
    );
  plot.show({
    layers: [
      {
        kind: "stack",
        xs: over.from_s,
        parts: names.map((name) => ({ name, word: name, ys: over.cores[name] })),
      },
    ],
    x,
    until: Math.min(until, over.at_s.at(-1)),
    y: extent(stories.map(heights), { zero: true }),
    table: () => ({
      head: ["from", "until", ...names.map((name) => `${name}, cores`)],
      rows: over.at_s.map((at, row) => [
        duration(over.from_s[row]),
        duration(at),
        ...names.map((name) => cores(over.cores[name][row])),
      ]),
      numbers: [0, 1, ...names.map((_, at) => at + 2)],
    }),
  });
}

function showDevices(plot, found, { x, until }) {
  const { over_time: over, roles } = found;
  const names = roles.filter((role) => over.busy[role].some((value) => value !== null));
  plot.show({
    layers: names.map((name) => ({
      kind: "steps",
      name,
      word: name,
      xs: over.from_s,
      ys: over.busy[name],
    })),
    x,
    until: Math.min(until, over.at_s.at(-1)),
    y: [0, 1],
    table: () => ({
      head: ["from", "until", ...names],
      rows: over.at_s.map((at, row) => [
        duration(over.from_s[row]),
        duration(at),
        ...names.map((name) => share(over.busy[name][row])),
      ]),
      numbers: [0, 1, ...names.map((_, at) => at + 2)],
    }),
  });
}

/** A row for each cell: how many processors it used in each role, and how busy its device was. */
function byCell({ roles, cells, engines, total, beside, others, has_devices: hasDevices }) {
  const used = roles.filter((role) => role in total);
  const said = (part) => {
    if (!part) return "–";
    const device = hasDevices ? `, device ${share(part.busy)}` : "";
    return `${cores(part.cores)} cores${device}`;
  };
  const row = (name, parts) => [
    name,
    ...used.map((role) => said(parts[role])),
    duration(Object.values(parts).reduce((sum, part) => sum + part.cpu_s, 0)),
  ];
  return table({
    caption: "On average while in each role, and processor time in all",
    head: ["who", ...used, "processor time"],
    rows: [
      ...cells.map((one) => row(`cell ${one.cell}`, one.roles)),
      ...engines.map((one) => row(`engine ${one.engine}`, one.roles)),
      row("all cells", total),
      ...others.map((who) => [
        who,
        ...used.map(() => "–"),
        `${duration(beside[who].cpu_s)}, ${cores(beside[who].cores)} cores`,
      ]),
    ],
    numbers: [...used.map((_, at) => at + 1), used.length + 1],
  });
}

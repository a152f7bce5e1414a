// The panels that lay several runs over one another: rewards, steps, objective, tokens, speed-up.

import { Plot } from "./plot.js";
import { compact, count, duration, short } from "./format.js";

/** `make(hands)` gives { figures, show(stories) }; every curve is over steps. */
export const OVER_STEPS = [
  { id: "reward", title: "Reward and evaluation", needs: ["steps", "evaluation"], make: reward },
  { id: "time", title: "Time of steps", needs: ["steps"], make: time },
  { id: "objective", title: "Objective", needs: ["steps"], make: objective, isWide: true },
  { id: "tokens", title: "Tokens of steps", needs: ["steps"], make: tokens },
];

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

/** Names that tell runs apart; of one alone nothing needs to be said. */
function named(name, story, stories) {
  return stories.length > 1 ? `${name}, ${story.run.name}` : name;
}

/** A line for each run; runs differ by dash, and by colour unless that tells quantities apart. */
function lines(stories, name, values, word, { isOneOfMany = false } = {}) {
  return stories.map((story, at) => ({
    kind: "line",
    name: named(name, story, stories),
    word: stories.length > 1 && !isOneOfMany ? `run-${at}` : word,
    dash: DASHES[at % DASHES.length],
    xs: story.panels.steps.step,
    ys: values(story.panels.steps),
  }));
}

function span(stories) {
  return [
    0,
    0.5 +
      Math.max(
        1,
        ...stories.map((story) => story.panels.steps.step.at(-1) ?? 0),
        ...stories.map((story) => story.panels.evaluation?.version.at(-1) ?? 0),
      ),
  ];
}

function behind(stories, columns) {
  return () => ({
    head: ["run", "step", ...columns.map(([name]) => name)],
    rows: stories.flatMap(({ run, panels: { steps } }) =>
      steps.step.map((step, at) => [
        run.name,
        count(step),
        ...columns.map(([, key, format]) => format(steps[key][at] ?? null)),
      ]),
    ),
    numbers: columns.map((_, at) => at + 2).concat(1),
  });
}

function reward() {
  const training = new Plot({
    title: "Reward of steps",
    note: "Mean over the valid rewards of the groups of each step.",
    x: "whole",
    zero: false,
    height: 150,
  });
  const held = new Plot({
    title: "Held-out evaluation",
    note: "Mean of valid scores with its standard error, by version.",
    x: "whole",
    xLabel: "version",
    height: 150,
    zero: false,
  });
  return {
    figures: [training, held],
    show(stories) {
      training.show({
        layers: lines(stories, "reward", (steps) => steps.reward, "reward"),
        x: span(stories),
        table: behind(stories, [["reward", "reward", short]]),
      });
      held.show({
        layers: stories.map((story, at) => ({
          kind: "errors",
          name: named("evaluation", story, stories),
          word: stories.length > 1 ? `run-${at}` : "evaluation",
          dash: DASHES[at % DASHES.length],
          xs: story.panels.evaluation.version,
          ys: story.panels.evaluation.mean,
          errors: story.panels.evaluation.standard_error,
        })),
        x: span(stories),
        table: () => ({
          head: ["run", "version", "mean", "standard error", "valid", "tasks"],
          rows: stories.flatMap(({ run, panels: { evaluation: one } }) =>
            one.version.map((version, at) => [
              run.name,
              count(version),
              short(one.mean[at]),
              short(one.standard_error[at]),
              count(one.num_valid[at]),
              count(one.num_tasks[at]),
            ]),
          ),
          numbers: [1, 2, 3, 4, 5],
        }),
      });
    },
  };
}

function time() {
  const took = new Plot({
    title: "Time of each step",
    note: "From the step before, or from the start.",
    x: "whole",
    yFormat: duration,
    yKind: "time",
    height: 150,
  });
  const training = new Plot({
    title: "Cells in training at each step",
    note: "",
    x: "whole",
    yFormat: count,
    yKind: "whole",
    height: 120,
  });
  const faster = new Plot({
    title: "Speed-up",
    note: "",
    x: "whole",
    zero: false,
    yFormat: (value) => `${short(value)}×`,
    height: 140,
  });
  return {
    figures: [took, training, faster],
    show(stories) {
      const columns = [
        ["took", "took_s", duration],
        ["at", "at_s", duration],
        ["cells in training", "num_training", count],
        ["void groups", "num_void", count],
      ];
      took.show({
        layers: lines(stories, "step", (steps) => steps.took_s, "step-time"),
        x: span(stories),
        table: behind(stories, columns),
      });
      training.show({
        layers: lines(stories, "in training", (steps) => steps.num_training, "training"),
        x: span(stories),
        table: behind(stories, columns),
      });
      faster.element.hidden = stories.length < 2;
      if (stories.length > 1) showSpeedUp(faster, stories);
    },
  };
}

/** Time of the second run up to each step over that of the first. */
export function speedUp(first, second) {
  const num = Math.min(first.step.length, second.step.length);
  return {
    steps: first.step.slice(0, num),
    values: Array.from({ length: num }, (_, at) => second.at_s[at] / first.at_s[at]),
  };
}

function showSpeedUp(plot, [first, second]) {
  const found = speedUp(first.panels.steps, second.panels.steps);
  const [one, other] = [first.run.name, second.run.name];
  plot.figure.note.textContent = `Time that ${other} took to each step, over that of ${one}.`;
  plot.show({
    layers: [
      {
        kind: "line",
        name: `${first.run.name} against ${second.run.name}`,
        word: "run-0",
        xs: found.steps,
        ys: found.values,
      },
      { kind: "level", name: "as fast", word: "threshold", y: 1 },
    ],
    x: span([first, second]),
    table: () => ({
      head: ["step", "speed-up"],
      rows: found.steps.map((step, at) => [count(step), short(found.values[at], 4)]),
      numbers: [0, 1],
    }),
  });
}

const OBJECTIVE = [
  ["Loss", "", "loss", (steps) => steps.loss, short],
  [
    "Gradient norm",
    "Filled where it was clipped.",
    "gradient norm",
    (steps) => steps.gradient_norm,
    short,
  ],
  [
    "Ratio of new to old policy",
    "Mean over targets.",
    "mean ratio",
    (steps) => steps.mean_ratio,
    short,
  ],
  [
    "Clipped targets",
    "Part of all targets whose gradient the clip took, raised and lowered together.",
    "clipped",
    (steps) => steps.clipped,
    short,
  ],
  [
    "Mismatch",
    "Most that trainer and engine differ in the log-probability of a target.",
    "mismatch",
    (steps) => steps.max_gap,
    short,
  ],
];

function objective() {
  const plots = OBJECTIVE.map(
    ([title, note]) => new Plot({ title, note, x: "whole", zero: false, height: 130 }),
  );
  return {
    figures: plots,
    isGrid: true,
    show(stories) {
      const known = stories.some(({ panels: { steps } }) => steps.loss.some((one) => one !== null));
      const isPretended = !known && stories.every(({ run }) => run.is_simulated);
      for (const one of plots) one.element.hidden = isPretended;
      if (isPretended) return "Nothing is computed in a simulation, so nobody knows.";
      const columns = [
        ["loss", "loss", short],
        ["gradient norm", "gradient_norm", short],
        ["clipped", "is_clipped", (value) => (value === null ? "–" : value ? "yes" : "no")],
        ["mean ratio", "mean_ratio", short],
        ["raised, clipped", "raised_clipped", short],
        ["lowered, clipped", "lowered_clipped", short],
        ["all, clipped", "clipped", short],
        ["capped", "capped", short],
        ["mismatch", "max_gap", short],
      ];
      OBJECTIVE.forEach(([title, , name, values], at) => {
        const layers = lines(stories, name, values, slugged(title));
        if (title === "Gradient norm") layers.push(...marked(stories));
        plots[at].show({ layers, x: span(stories), table: behind(stories, columns) });
      });
      return null;
    },
  };
}

const slugged = (title) => `objective-${title.toLowerCase().replaceAll(" ", "-")}`;

/** Dots where the gradient was clipped. */
function marked(stories) {
  return stories
    .map(({ panels: { steps } }) => {
      const kept = steps.step.map((_, at) => at).filter((at) => steps.is_clipped[at]);
      return {
        kind: "dots",
        name: "clipped",
        word: "clipped",
        size: 5,
        xs: kept.map((at) => steps.step[at]),
        ys: kept.map((at) => steps.gradient_norm[at]),
      };
    })
    .filter((layer) => layer.xs.length);
}

function tokens() {
  const trained = new Plot({
    title: "Tokens of each step",
    note: "What was trained, each shared prefix once, beside what its trajectories one by one had.",
    x: "whole",
    yFormat: compact,
  });
  return {
    figures: [trained],
    show(stories) {
      const columns = [
        ["trajectories", "trajectories", count],
        ["tokens", "tokens", count],
        ["one by one", "row_tokens", count],
        ["targets", "targets", count],
      ];
      trained.show({
        layers: [
          ...lines(stories, "one by one", (steps) => steps.row_tokens, "row-tokens", {
            isOneOfMany: true,
          }),
          ...lines(stories, "trained", (steps) => steps.tokens, "tokens", { isOneOfMany: true }),
          ...lines(stories, "targets", (steps) => steps.targets, "targets", { isOneOfMany: true }),
        ],
        x: span(stories),
        table: behind(stories, columns),
      });
      return null;
    },
  };
}

// What modules of the page compute without a browser; each check is a sentence, and the first that
// does not hold ends the program. test_page.py runs it.

import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";

const page = (name) => import(pathToFileURL(`${process.argv[2]}/${name}`).href);
const { parsed, spelled } = await page("address.js");
const { bytes, compact, count, duration, many, share, short } = await page("format.js");
const { extent, lastAtMost, linear, ticks, timeTicks, wholeTicks } = await page("scale.js");
const { edge, layout, neighbour, within } = await page("layout.js");
const { nextStep } = await page("scrubber.js");
const { likelihood, versionsOf } = await page("tokens.js");
const { lastValues, nearest, valuesAt } = await page("layers.js");
const { described, numbered } = await page("boxes.js");
const { kind } = await page("left.js");
const { speedUp } = await page("curves.js");
const { spanAt } = await page("timeline.js");
const { dwelt } = await page("panels.js");
const { around, stepped } = await page("figure.js");
const { tiles } = await page("moment.js");

const checks = {
  "durations are said in the two units that matter"() {
    const said = [0, 0.0034, 3.14159, 59.4, 60, 125, 7500, 93784, -5, null].map(duration);
    assert.deepEqual(said, [
      "0 s",
      "3.4 ms",
      "3.1 s",
      "59.4 s",
      "1 min",
      "2 min 5 s",
      "2 h 5 min",
      "1 d 2 h",
      "−5 s",
      "–",
    ]);
  },
  "numbers have as many digits as count"() {
    assert.deepEqual(
      [0, 1234.567, 0.012345, 1e-7, -2.5, null].map((one) => short(one)),
      ["0", "1,235", "0.0123", "1.00e-7", "−2.5", "–"],
    );
    assert.deepEqual([999, 12345, 2_500_000, 3.25, null].map(compact), [
      "999",
      "12.3k",
      "2.5M",
      "3.25",
      "–",
    ]);
    assert.deepEqual([0, 1023, 1536, 5 * 2 ** 30].map(bytes), [
      "0 B",
      "1,023 B",
      "1.5 KiB",
      "5 GiB",
    ]);
    assert.deepEqual(
      [count(1234567), share(0.125), many(1, "call"), many(2, "call")],
      ["1,234,567", "12.5 %", "1 call", "2 calls"],
    );
  },
  "zero is said and what is absent is not said to be zero"() {
    assert.deepEqual([count(0), short(0), share(0), duration(0)], ["0", "0", "0 %", "0 s"]);
    assert.deepEqual([count(null), short(null), share(null), duration(null)], ["–", "–", "–", "–"]);
  },
  "an address says the same after it was spelled"() {
    const place = {
      ...parsed(""),
      view: "tree",
      runs: ["a", "b"],
      at: 12.5,
      execution: "g00001-00",
      box: 0,
    };
    assert.deepEqual(parsed(spelled(place)), place);
    assert.equal(spelled(parsed("")), "#");
  },
  "a moment is named by t, too"() {
    assert.equal(parsed("#t=12.5").at, 12.5);
    assert.equal(parsed("#t=12.5&at=7").at, 7);
    assert.equal(spelled(parsed("#t=12.5")), "#at=12.5");
  },
  "an address that says nonsense is the beginning"() {
    const found = parsed("#view=nowhere&at=soon&box=&hidden=1&__proto__=2");
    assert.deepEqual(found, parsed(""));
  },
  "a scale leads there and back"() {
    const scale = linear([10, 20], [100, 0]);
    assert.deepEqual([scale(10), scale(15), scale.invert(0), scale.invert(100)], [100, 50, 20, 10]);
    assert.equal(linear([3, 3], [0, 10])(3), 5);
  },
  "ticks are round and within their extent"() {
    assert.deepEqual(ticks([0, 1], 5), [0, 0.2, 0.4, 0.6, 0.8, 1]);
    assert.deepEqual(ticks([-3, 7], 4), [0, 5]);
    assert.deepEqual(timeTicks([0, 7200], 4), [0, 1800, 3600, 5400, 7200]);
    assert.deepEqual(wholeTicks([0, 3], 10), [0, 1, 2, 3]);
    assert.deepEqual(ticks([4, 4]), [4]);
  },
  "an extent passes over what is absent"() {
    assert.deepEqual(
      extent([
        [null, 2, 5],
        [undefined, -1],
      ]),
      [-1, 5],
    );
    assert.deepEqual(extent([[2, 5]], { zero: true }), [0, 5]);
    assert.deepEqual(extent([[null]]), [0, 1]);
    assert.deepEqual(extent([[0, 0]]), [0, 1]);
  },
  "the last value at most is found in a sorted list"() {
    assert.deepEqual(
      [0, 1, 2.5, 9].map((value) => lastAtMost([1, 2, 2, 4], value)),
      [-1, 0, 2, 3],
    );
    assert.deepEqual(
      [nearest([1, 4], 2), nearest([1, 4], 3), nearest([], 3), nearest([5], -1)],
      [0, 1, -1, 0],
    );
  },
  "steps hold until the next and points only where they are"() {
    const layers = [
      { kind: "steps", name: "w", xs: [0, 10], ys: [1, 2] },
      { kind: "dots", name: "p", xs: [10], ys: [7] },
      { kind: "stack", xs: [0, 5], parts: [{ name: "a", ys: [3, 4] }] },
      { kind: "level", name: "l", y: 9 },
    ];
    const named = (found) => found.map(([name, value]) => [name, value]);
    assert.deepEqual(named(valuesAt(layers, 7, 1)), [
      ["w", 1],
      ["a", 4],
    ]);
    assert.deepEqual(named(valuesAt(layers, 10.5, 1)), [
      ["w", 2],
      ["p", 7],
      ["a", 4],
    ]);
    assert.deepEqual(named(valuesAt(layers, 10 - 1e-12, 1)), named(valuesAt(layers, 10, 1)));
    assert.deepEqual(named(valuesAt(layers, -1, 1)), []);
    assert.deepEqual(named(lastValues([{ kind: "line", name: "r", xs: [1, 2], ys: [0, null] }])), [
      ["r", 0],
    ]);
  },
  "a box stands level with its first child and above the others"() {
    const { places, children } = layout(BOXES);
    assert.deepEqual(children[1], [3, 2], "the one that goes on comes first");
    assert.equal(places[0].y, places[1].y);
    assert.equal(places[1].y, places[3].y);
    assert.ok(places[2].y >= places[3].y + places[3].height);
    assert.ok(
      places[5].y >= places[0].y + places[0].height,
      "the second root stands below the first",
    );
    assert.deepEqual(
      places.map((place) => place.level),
      [0, 1, 2, 2, 1, 0],
    );
  },
  "no two boxes overlap, however the tree forks"() {
    let seed = 1;
    const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
    for (let round = 0; round < 50; round += 1) {
      const boxes = [];
      for (let id = 0; id < 60; id += 1)
        boxes.push({
          id,
          parent: random() < 0.1 || !id ? null : Math.floor(random() * id),
          kind: random() < 0.2 ? "preface" : "calls",
          goes_on: random() < 0.5,
        });
      const { places, width, height } = layout(boxes);
      for (const box of boxes) {
        const one = places[box.id];
        assert.ok(one.x + one.width <= width && one.y + one.height <= height);
        if (box.parent !== null)
          assert.ok(one.y >= places[box.parent].y && one.x > places[box.parent].x);
        const over = within(places, {
          left: one.x + 1,
          top: one.y + 1,
          right: one.x + one.width - 1,
          bottom: one.y + one.height - 1,
        });
        assert.deepEqual(over, [box.id]);
      }
    }
  },
  "a tree of thousands of forks in a row is laid out"() {
    const boxes = Array.from({ length: 20000 }, (_, id) => ({
      id,
      parent: id ? id - 1 : null,
      kind: "calls",
      goes_on: id > 0,
    }));
    assert.equal(layout(boxes).places.length, 20000);
  },
  "arrow keys lead along the tree"() {
    const made = layout(BOXES);
    const lead = (id, key) => neighbour(id, key, made, BOXES);
    assert.deepEqual(
      [lead(0, "ArrowRight"), lead(1, "ArrowRight"), lead(1, "ArrowLeft"), lead(0, "ArrowLeft")],
      [1, 3, 0, null],
    );
    assert.deepEqual(
      [lead(3, "ArrowDown"), lead(2, "ArrowUp"), lead(0, "ArrowDown"), lead(0, "ArrowUp")],
      [2, 3, 5, null],
    );
    assert.deepEqual([lead(3, "Home"), lead(0, "End"), lead(0, "x")], [0, 5, null]);
  },
  "edges are right-angled"() {
    const box = { x: 0, y: 0, width: 100, height: 50 };
    assert.equal(edge(box, { ...box, x: 140 }), "M100 20H140");
    assert.equal(edge(box, { ...box, x: 140, y: 70 }), "M100 20H120V90H140");
  },
  "calls of a box are numbered in few characters"() {
    assert.deepEqual([[3], [3, 4, 5], [3, 5, 9]].map(numbered), ["3", "3–5", "3..9 (3)"]);
  },
  "a box in words says why it forks and what is trained"() {
    const box = {
      kind: "calls",
      calls: [4],
      role: "main",
      agent: null,
      fork: "retry",
      is_summary: false,
      is_committed: true,
      new_tokens: 8,
      output_tokens: 23,
      path_tokens: 238,
      targets: 23,
      draws: [2],
      versions: [3],
      opened_at: 1,
      closed_at: 2,
    };
    const said = described(box);
    for (const part of ["call 4", "fork: retry", "23 targets of draw 2", "version 3"])
      assert.ok(said.includes(part), said);
    assert.ok(described({ ...box, targets: 0, draws: [] }).includes("no targets"));
  },
  "steps of a run are gone through one by one"() {
    assert.deepEqual(
      [nextStep([10, 20], 5, 1), nextStep([10, 20], 10, 1), nextStep([10, 20], 20, 1)],
      [10, 20, null],
    );
    assert.deepEqual(
      [
        nextStep([10, 20], 25, -1),
        nextStep([10, 20], 20, -1),
        nextStep([10, 20], 10, -1),
        nextStep([], 3, -1),
      ],
      [20, 10, 0, 0],
    );
  },
  "keys go from place to place in a plot"() {
    assert.deepEqual(
      [
        stepped([5, 9, 12], null, "ArrowRight", 1),
        stepped([5, 9, 12], 9, "ArrowRight", 1),
        stepped([5, 9, 12], 9, "ArrowLeft", 1),
        stepped([5, 9, 12], 12, "ArrowRight", 10),
      ],
      [5, 12, 5, 12],
    );
    assert.deepEqual(
      [
        stepped([5, 5.1, 5.2, 9], 5.1, "ArrowRight", 1),
        stepped([5, 8.8, 8.9, 9], 8.9, "ArrowLeft", 1),
      ],
      [9, 5],
    );
    assert.deepEqual(
      [stepped([5, 9], 7, "Home", 1), stepped([5, 9], 5, "End", 1), stepped([5, 9], 5, "a", 1)],
      [5, 9, null],
    );
  },
  "a window is looked at closer about a place and never before the beginning"() {
    assert.deepEqual(
      [
        around([0, 100], 20, 0.5),
        around([0, 100], null, 0.5),
        around([10, 20], 15, 2),
        around([1, 3], 2, 8),
      ],
      [
        [10, 60],
        [25, 75],
        [5, 25],
        [0, 16],
      ],
    );
  },
  "tokens have the version of their span"() {
    assert.deepEqual(
      versionsOf(
        [
          { version: 3, tokens: 2 },
          { version: null, tokens: 1 },
        ],
        4,
      ),
      [3, 3, null, null],
    );
    assert.deepEqual(versionsOf([{ version: 3, tokens: 9 }], 2), [3, 3]);
  },
  "likelihoods fall into five classes"() {
    assert.deepEqual(
      [0.001, 0.05, 0.3, 0.7, 0.99].map((chance) => likelihood(Math.log(chance))),
      [1, 2, 3, 4, 5],
    );
  },
  "lines of a difference are told apart"() {
    assert.deepEqual(["@@ -1 +1 @@", "+a", "-b", " c", ""].map(kind), [
      "hunk",
      "plus",
      "minus",
      "same",
      "same",
    ]);
  },
  "a speed-up is time over time up to the last step that both have"() {
    const found = speedUp(
      { step: [1, 2, 3], at_s: [10, 20, 30] },
      { step: [1, 2], at_s: [20, 60] },
    );
    assert.deepEqual(found, { steps: [1, 2], values: [2, 3] });
  },
  "a row of the timeline has its state at any time"() {
    const spans = [
      [0, 5, "serving"],
      [5, 9, "training"],
    ];
    assert.deepEqual(
      [
        spanAt(spans, 0)[2],
        spanAt(spans, 5)[2],
        spanAt(spans, 9)[2],
        spanAt(spans, 10),
        spanAt([], 0),
      ],
      ["serving", "training", "training", null, null],
    );
  },
  "the dwell timer grows from row to row and to the end"() {
    const found = dwelt({ at_s: [0, 4, 10, 12], since_s: [null, 4, null, 11] }, 20);
    const layers = [{ kind: "slope", name: "held", ...found }];
    assert.deepEqual(found.xs, [0, 4, 4, 10, 10, 12, 12, 20]);
    assert.deepEqual(found.ys, [0, 0, 0, 6, 0, 0, 1, 9]);
    assert.deepEqual(
      [2, 4, 7, 10, 15].map((place) => valuesAt(layers, place, 0)[0][1]),
      [0, 0, 3, 0, 4],
    );
    assert.equal(valuesAt(layers, 4 - 1e-7, 1)[0][1], 0);
    assert.deepEqual(lastValues(layers), [["held", 9, undefined]]);
    assert.deepEqual(dwelt({ at_s: [], since_s: [] }, 5), { xs: [], ys: [] });
  },
  "the tiles of a moment say why no cell enters"() {
    const said = Object.fromEntries(
      tiles(MOMENT, { steps: null, supply_groups: 2, supply_dwell_s: 5 }).map(
        ([name, value, more]) => [name, `${value}; ${more}`],
      ),
    );
    assert.equal(said["next cell"], "stays; because of the waterlevel");
    assert.equal(said.waterlevel, "20 of 24; admission line −4");
    assert.equal(said.supply, "0.5; below 2");
    assert.equal(said.left, "–; if steps go on as they did");
  },
};

const BOXES = [
  { id: 0, parent: null, kind: "preface" },
  { id: 1, parent: 0, kind: "calls", goes_on: false },
  { id: 2, parent: 1, kind: "calls", goes_on: false },
  { id: 3, parent: 1, kind: "calls", goes_on: true },
  { id: 4, parent: 0, kind: "calls", goes_on: false },
  { id: 5, parent: null, kind: "preface" },
];

const MOMENT = {
  at_s: 9,
  version: 3,
  published: 2,
  phase: "training",
  assigned: 2,
  needed: 4,
  ready: 1,
  waterlevel: 20,
  running: 18,
  queued: 2,
  evaluations: 0,
  capacity: 24,
  line: -4,
  supply: 0.5,
  supply_since_s: null,
  left_s: null,
  entering: { may: false, why: "waterlevel" },
  groups: { running: 2, assessing: 0, trained: 12, void: 0 },
  executions: { dispatched: 80, closed: 60 },
};

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
  } catch (error) {
    console.error(`${name}: ${error.message}`);
    process.exit(1);
  }
  console.log(name);
}

// Where the boxes of a tree stand: from left to right, each parent level with its first child.

export const WIDTH = 236;
export const GUTTER = 40;
const GAP = 14;
const HEIGHTS = { preface: 46, calls: 104 };

/**
 * The places of boxes, in the order they came in: { x, y, width, height, level }, and children by
 * box, the one that goes on with the conversation first. Boxes come after their parents.
 */
export function layout(boxes) {
  const children = boxes.map(() => []);
  const roots = [];
  const levels = [];
  boxes.forEach((box) => {
    if (box.parent === null) roots.push(box.id);
    else children[box.parent].push(box.id);
    levels[box.id] = box.parent === null ? 0 : levels[box.parent] + 1;
  });
  for (const below of children)
    below.sort(
      (one, other) =>
        Number(boxes[other].goes_on ?? false) - Number(boxes[one].goes_on ?? false) || one - other,
    );
  const places = new Array(boxes.length);
  const bottoms = [];
  const waiting = roots.toReversed();
  while (waiting.length) {
    const spine = [];
    for (let at = waiting.pop(); at !== undefined; at = children[at][0]) spine.push(at);
    const y = Math.max(0, ...spine.map((id) => bottoms[levels[id]] ?? 0));
    for (const id of spine) {
      const height = HEIGHTS[boxes[id].kind];
      places[id] = { x: levels[id] * (WIDTH + GUTTER), y, width: WIDTH, height, level: levels[id] };
      bottoms[levels[id]] = y + height + GAP;
    }
    // Those that leave the spine at its end come first, so that they stand close to it.
    for (const id of spine) waiting.push(...children[id].slice(1).toReversed());
  }
  const width = Math.max(0, ...places.map((place) => place.x + place.width));
  const height = Math.max(0, ...places.map((place) => place.y + place.height));
  return { places, children, roots, width, height };
}

/** The right-angled line from a parent to a child. */
export function edge(from, to) {
  const middle = from.x + from.width + GUTTER / 2;
  const [start, end] = [from.y + 20, to.y + 20];
  if (start === end) return `M${from.x + from.width} ${start}H${to.x}`;
  return `M${from.x + from.width} ${start}H${middle}V${end}H${to.x}`;
}

/** Boxes that touch a window of the drawing. */
export function within(places, { left, top, right, bottom }) {
  const found = [];
  places.forEach((place, id) => {
    if (
      place.x <= right &&
      place.x + place.width >= left &&
      place.y <= bottom &&
      place.y + place.height >= top
    )
      found.push(id);
  });
  return found;
}

/** The box that a key leads to from another; null where there is none. */
export function neighbour(id, key, { places, children, roots }, boxes) {
  const { parent } = boxes[id];
  const siblings = parent === null ? roots : children[parent];
  switch (key) {
    case "ArrowRight":
      return children[id][0] ?? null;
    case "ArrowLeft":
      return parent;
    case "ArrowDown":
    case "ArrowUp": {
      const by = key === "ArrowDown" ? 1 : -1;
      const next = siblings[siblings.indexOf(id) + by];
      return next ?? nearestBeside(id, by, places);
    }
    case "Home":
      return roots[0] ?? null;
    case "End":
      return places.length - 1;
    default:
      return null;
  }
}

/** The nearest box above or below in the same column. */
function nearestBeside(id, by, places) {
  let best = null;
  places.forEach((place, other) => {
    if (place.level !== places[id].level || (place.y - places[id].y) * by <= 0) return;
    if (best === null || Math.abs(place.y - places[id].y) < Math.abs(places[best].y - places[id].y))
      best = other;
  });
  return best;
}

// Colours by the words they stand for, as the style sheet says, for what is drawn on canvas.

import { slug } from "./dom.js";

const known = new Map();
let probe = null;

/** The colour of a word: a state, a cause, an ending, a role of a call. */
export const colour = (word) => valueOf(`--c-${slug(word)}`);

/** What everything is drawn upon. */
export const ground = () => valueOf("--panel");

function valueOf(name) {
  if (!known.has(name)) known.set(name, computed(name));
  return known.get(name);
}

/** What a variable comes to in the present theme; only an element's own colour is computed. */
function computed(name) {
  if (probe === null) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  probe.style.color = `var(${name}, #888888)`;
  return getComputedStyle(probe).color;
}

/** After the theme has changed, colours are asked for again. */
export function forgetColours() {
  known.clear();
  hatchings.clear();
}

const hatchings = new Map();
const HATCHED = new Set(["entering", "leaving", "switching", "fenced", "empty seats", "waiting"]);

export const isHatched = (word) => HATCHED.has(word);

/** What an area of that word is filled with; some are hatched: hue is not all that tells. */
export function filling(context, word) {
  const plain = colour(word);
  if (!HATCHED.has(word)) return plain;
  if (!hatchings.has(word))
    hatchings.set(word, hatching(plain, word === "leaving" || word === "fenced"));
  return context.createPattern(hatchings.get(word), "repeat");
}

function hatching(plain, isBackward) {
  const size = 6;
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const context = tile.getContext("2d");
  context.globalAlpha = 0.45;
  context.fillStyle = plain;
  context.fillRect(0, 0, size, size);
  context.globalAlpha = 1;
  context.strokeStyle = plain;
  context.lineWidth = 2;
  context.beginPath();
  for (const shift of [-size, 0, size]) {
    context.moveTo(shift + (isBackward ? size : 0), 0);
    context.lineTo(shift + (isBackward ? 0 : size), size);
  }
  context.stroke();
  return tile;
}

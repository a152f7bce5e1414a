// Elements of the page, made in one line; text is always text and never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties, attributes (names with a dash, role, for) and what it holds. */
export function el(name, properties = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key === "on")
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    else if (key === "data") Object.assign(made.dataset, value);
    else if (key in made && !key.includes("-") && key !== "role" && key !== "list")
      made[key] = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...flat(inside));
  return made;
}

function flat(inside) {
  return inside.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false);
}

/** The same for a drawing. */
export function svg(name, attributes = {}, ...inside) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...inside);
  return made;
}

/** What an element holds from now on. */
export function fill(parent, ...inside) {
  parent.replaceChildren(...flat(inside));
  return parent;
}

/** Calls a function once in the next frame, however often it was asked to meanwhile. */
export function onceAFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

/** A name that can be part of a class or of a variable's name. */
export function slug(words) {
  return words.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

let made = 0;

/** A name for an element that others refer to. */
export function freshId(prefix) {
  made += 1;
  return `${prefix}-${made}`;
}

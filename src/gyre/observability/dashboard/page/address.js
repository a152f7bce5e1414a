// Where somebody is in the page, as the part of its address behind the #, so that links lead there.

const NUMBERS = new Set(["at", "from", "to", "box", "offset"]);
const VIEWS = new Set(["run", "executions", "tree"]);

/** { view, runs, at, from, to, execution, box, ... }; what is absent is null, and t is at. */
export function parsed(text) {
  const given = new URLSearchParams(text.replace(/^#/, ""));
  const found = {
    view: "run",
    runs: [],
    at: null,
    from: null,
    to: null,
    execution: null,
    box: null,
    offset: null,
    order: null,
    kind: null,
    group: null,
    ending: null,
    outcome: null,
  };
  for (const [key, value] of given) {
    if (key === "view") found.view = VIEWS.has(value) ? value : "run";
    else if (key === "runs") found.runs = value.split(",").filter(Boolean);
    else if (key === "t") found.at = found.at ?? number(value);
    else if (NUMBERS.has(key)) found[key] = number(value);
    else if (key in found) found[key] = value || null;
  }
  return found;
}

function number(text) {
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : null;
}

/** The same as text, without what is absent. */
export function spelled(place) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(place)) {
    const text = Array.isArray(value) ? value.join(",") : value;
    if (text !== null && text !== undefined && text !== "" && !(key === "view" && text === "run"))
      query.set(key, String(text));
  }
  return `#${query.toString().replaceAll("%2C", ",")}`;
}

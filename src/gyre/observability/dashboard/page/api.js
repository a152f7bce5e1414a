// Everything the page asks of its server, and nothing else is asked anywhere.

export class Refused extends Error {}

async function ask(path, values, signal) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, String(value));
  }
  const text = query.toString();
  const answer = await fetch(`api/${path}${text ? `?${text}` : ""}`, { signal });
  let body = null;
  try {
    body = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (!answer.ok || body === null)
    throw new Refused(body?.error ?? `${path}: ${answer.status} ${answer.statusText}`);
  return body;
}

export const runs = () => ask("runs", {});
export const story = (values, signal) => ask("story", values, signal);
export const executions = (values, signal) => ask("executions", values, signal);
export const tree = (run, execution, signal) => ask("tree", { run, execution }, signal);
export const call = (run, execution, number, signal) =>
  ask("call", { run, execution, call: number }, signal);
export const left = (run, execution, signal) => ask("left", { run, execution }, signal);

/** Calls `heard` with what is new of any run; `state` says whether there is a connection. */
export function follow(heard, state) {
  const source = new EventSource("api/news");
  source.addEventListener("news", (event) => heard(JSON.parse(event.data)));
  source.addEventListener("open", () => state(true));
  source.addEventListener("error", () => state(false));
  return () => source.close();
}

/** Only the newest of several questions is answered; the ones before it are given up. */
export class Newest {
  #controller = null;

  async ask(question) {
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      const answer = await question(controller.signal);
      return this.#controller === controller ? answer : null;
    } catch (error) {
      if (error.name === "AbortError" || this.#controller !== controller) return null;
      throw error;
    }
  }
}

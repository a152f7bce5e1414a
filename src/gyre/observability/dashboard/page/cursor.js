// The moment that the pointer is at, shared by all plots over time.

class Cursor extends EventTarget {
  at = null;

  move(at) {
    if (at === this.at) return;
    this.at = at;
    this.dispatchEvent(new Event("move"));
  }
}

export const cursor = new Cursor();

"""For people: what a recorded run looks like, and its rows as files; reads logs only."""

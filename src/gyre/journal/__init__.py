"""The run's journal: what happened, in order, in one framed file with one writer."""

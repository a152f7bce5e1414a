"""The controller process of a run."""

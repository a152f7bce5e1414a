"""The executions of a run: groups, supervisors, held-out evaluation."""

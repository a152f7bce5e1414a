"""Any moment of a run, from its journal."""

"""Clusters: where the processes of a run are started, on one machine or on many."""

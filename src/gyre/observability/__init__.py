"""A run's history, dashboard, report, terminal views and trackers, from its journal."""

"""The dashboard: its process, its API, its panels."""

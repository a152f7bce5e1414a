"""The run file: config dataclasses, loading, validation, presets."""

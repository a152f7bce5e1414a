"""The run file: TOML into frozen sections, with every mistake named at once."""

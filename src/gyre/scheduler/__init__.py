"""The pure scheduler: events in, commands out."""

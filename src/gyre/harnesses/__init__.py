"""Agent programs: install, launch, recognise."""

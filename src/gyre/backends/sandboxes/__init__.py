"""Places to run programs in, behind the Sandbox port."""

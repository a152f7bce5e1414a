"""Ways for weights and cached blocks from one process to another, behind the Transport port."""

"""Which execution runs where, and which cell trains when: a state machine without a clock."""

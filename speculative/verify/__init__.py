"""--verify: a session checked against its own target: greedy texts, rows, and texts that are drawn."""

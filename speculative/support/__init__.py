"""Files, signals, errors, the terminal: every command needs them. Nothing here imports from the rest of the project."""

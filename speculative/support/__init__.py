"""Files, downloads, signals and errors: every command needs them. Nothing here imports from the rest of the project."""

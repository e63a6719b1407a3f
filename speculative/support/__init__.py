"""What every command needs. Nothing here imports from the rest of the project.

errors.py has the errors that a user sees, and ends a command by one of them; signals.py prepares the process; files.py
writes files, terminal.py makes a text safe to print, texts.py reads prompts; names.py parses names, synonyms.py knows
those of others.
"""

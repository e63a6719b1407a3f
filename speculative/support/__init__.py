"""What every command needs. Nothing here imports from the rest of the project.

errors.py has the errors that a user sees, and ends a command by one of them; signals.py prepares the process; files.py
writes files, terminal.py makes a text safe to print, texts.py reads prompts; synonyms.py knows the names that others
have for our options and models.
"""

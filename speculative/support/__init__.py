"""What every command needs. Nothing here imports from the rest of the project.

errors.py has the errors that a user sees, and ends a command by one of them; process.py prepares the process; files.py
writes files and reads prompts, terminal.py makes a text safe to print; synonyms.py knows the names that others
have for our options and models.
"""

"""Parts that every command needs. Nothing here imports from the rest of the project.

errors.py has the errors that a user sees, ends a command by one of them, and knows other names of options. early.py
ends a command at Ctrl-C while it imports its libraries. process.py prepares the process, files.py writes files,
texts.py reads prompts, terminal.py makes a text safe to print, and progress.py shows that a command is at work.
"""

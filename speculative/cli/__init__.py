"""From the words that were typed to the lines that are printed.

command.py makes options of the words, and display.py prints the blog's lines while both decoders run, and ours after
them. help.py has --help. modes.py has what a command does in place of the blog's run: interactive.py is --interactive,
and workbench.py is --serve.
"""

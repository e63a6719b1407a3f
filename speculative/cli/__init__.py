"""From the words that were typed to the lines that are printed: command.py reads them and makes options of
them, display.py prints the blog's lines while both decoders run, and ours after them."""

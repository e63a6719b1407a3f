"""From the words that were typed to what is printed: words.py reads them, command.py makes options of them, display.py
prints the blog's lines while both decoders run, outcome.py what comes after."""

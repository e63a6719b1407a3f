"""From the words that were typed to the lines that are printed: words.py reads them, command.py makes options of them,
display.py prints the blog's lines while both decoders run, outcome.py the lines after them."""

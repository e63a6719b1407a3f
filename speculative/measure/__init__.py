"""What a run measured, in words and pictures.

turns.py decodes with both decoders and gives the record of each (record.DecoderRecord). observe.py makes the record of
the run from both (record.RunRecord), once: figures.py computes the figures, measuring.py times the models a little
more, predictions.py decodes the text again on paper (simulate.py). Everything else reads the record: ending.py (the
lines after a run), tables.py, page.py (with race.py and close_up.py) and document.py (the JSON).
"""

"""The measurements of a run, in words and pictures. The files in the order of reading:

    the record   turns: both decoders, timed in turns; record: the typed record of a run; make_record: a session and the
                 steps of its decoders become that record, once
    the figures  figures: counts, times, the account, the papers' formulas; doubt: whether the times can be right
    predictions  measuring: the times that they need beside the run; simulate: a known text is decoded on a clock of
                 prices; predictions: the speedup of other Ks and drafters
    the words    words; advice: the setting to try; ending: the lines after a run; tables: of --verbose
    elsewhere    document: the JSON, and back; page, with race and close_up: the page; run: the result in Python
    a score      score: a text that each model scores; expected: the speedup to expect on it; score_words, score_page
    from Python  pair: load_pair

An example: at K = 4 three calls of the target gave 5, 1 and 3 tokens. So 6 of 12 drafts were accepted, and the
acceptance rate is r = 9 / 15 = 0.6. If a draft costs c = 0.05 of a token and a window β = 1.1, the blog's formula
with β accounts for a speedup of r (K + 1) / (K c + β) = 3 / 1.3 = 2.3.
"""

"""A run: its options, its models, and how it decodes. The files in the order of reading:

the request  options: every option; values: their checks; plan: the meaning of the options
the models   load: from options to networks; prompts: their ids; session: all of it, loaded once
decoding     decode: one text; batch: several; cost_timer: the times by which K auto chooses
the steps    steps: a step with its text and its times; observer: its chances and tests; greedy: where texts differ
elsewhere    score: a text that is read, not decoded
"""

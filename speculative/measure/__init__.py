"""What happened in a run and why: the recorder, the formulas, the checks, and what shows them."""

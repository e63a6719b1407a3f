"""The measuring of a run: the recorder, the formulas, the checks, and the pages and tables that show them."""

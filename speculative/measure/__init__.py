"""The measuring of a run: the record, the formulas, the checks, and the pages and tables that show them."""

"""The samplers of others: which are listed, and the adapter that shows each to the law in one of its forms."""

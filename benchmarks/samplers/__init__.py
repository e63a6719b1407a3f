"""The samplers of others: which are listed, and what shows each to the law in one of its forms."""

"""How many tokens are drafted: K is a number, or it chooses itself."""

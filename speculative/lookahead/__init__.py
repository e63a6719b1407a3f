"""K that chooses itself: auto.py decides, learned.py remembers, and it and costs.py estimate."""

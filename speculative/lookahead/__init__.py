"""K that chooses itself: auto.py decides, learned.py remembers, acceptance.py and costs.py estimate."""

"""K that chooses itself: auto.py decides, learned.py remembers and estimates the chances, costs.py the seconds."""

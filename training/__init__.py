"""Models that learn: the bundled pair, distilled drafts, heads, and a draft that learns while it serves."""

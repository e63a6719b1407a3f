"""A run: its options, its models, and how it decodes."""

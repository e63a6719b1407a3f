"""A run: what was asked, what is loaded, and how it decodes."""

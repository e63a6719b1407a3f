"""The form of a GPT-2 in which Hugging Face's libraries save it: its settings, its tokens and its weights."""

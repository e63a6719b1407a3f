"""From the files in a model's folder, OpenAI's or Hugging Face's, to its settings, its tokens and its parameters."""

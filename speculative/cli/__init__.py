"""From a command line to what decodes: flags, texts, models, exit statuses."""

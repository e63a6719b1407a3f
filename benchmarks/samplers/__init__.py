"""Public samplers in the law's forms, a file each: what one adds to a project so that the law can be taken."""

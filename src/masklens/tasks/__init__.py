"""What a model's output means. Each kind of task has a file."""

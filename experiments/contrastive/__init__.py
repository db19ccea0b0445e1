"""Explanations of language models on prompts whose evidence is known."""

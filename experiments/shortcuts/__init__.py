"""Planted shortcuts: which methods find the words that decide the label in fine-tuned copies of a model?"""

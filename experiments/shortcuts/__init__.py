"""Planted shortcuts: copies of a model in which certain words decide, and which methods find them."""

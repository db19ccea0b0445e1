"""Planted emergence: transformers whose answer is known at every layer, and what lenses say of them."""

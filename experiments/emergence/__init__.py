"""Planted emergence: lenses on transformers for which it is known what each layer can know."""

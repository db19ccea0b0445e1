"""The model under study: its sites, its inputs, and how it is loaded."""

"""The papers' experiments, one module a section."""

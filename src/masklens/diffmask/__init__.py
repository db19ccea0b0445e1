"""DiffMask (De Cao et al. 2020): a lens over the layers of a model, and masks for single texts."""

"""The folder of the small sentiment model in the package, with its LM head and its lenses.

Its card, assets/sentiment/README.md, says how it was made. `Subject.default()` loads the model and
`DiffMask.default()` a lens.
"""

from pathlib import Path

HOME = Path(__file__).parents[1] / "assets" / "sentiment"
OVER = ("inputs", "states")
"""the package has one lens over each of these"""

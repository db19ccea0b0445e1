"""The experiments of both papers, and further ones on planted models. They run from a clone of the repository
and are not part of the wheel.

    python -m experiments --help
    python -m experiments toy --seed 0 --out out/toy

Each experiment has a folder. Its `experiment.py` has `run`, which does the parts that are missing in --out
and writes results.json, results.md and the figures. The experiments share parts.py (work that can be
resumed), model_run.py (a model and its lenses), measures.py, labelled.py (data) and results.py (how results
are written).
"""

"""The laboratory: the experiments of both papers, and one on planted models. It runs from a clone and is not
in the wheel.

    python -m experiments --help
    python -m experiments toy --seed 0 --out out/toy

One folder an experiment; `experiment.py` in it has `run`, which does what is missing in --out and writes
results.json, results.md and the figures. They share parts.py (work that can be resumed), model_run.py (a
model and its lenses), measures.py, labelled.py (data) and results.py (how results are written).
"""

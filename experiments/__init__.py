"""The laboratory: experiments on the papers and on planted models. Run from a clone; not part of the wheel.

python -m experiments emergence --out results/emergence
"""

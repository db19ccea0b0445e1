"""Speed measurements. Each module `bench_NAME.py` has a `main()` that returns its table as text.

`python -m benchmarks` runs them all; `python -m benchmarks NAME ...` runs the named ones.
"""

"""Speed measurements: ratios against other tools and against the bare model, taken in one run.

`python -m benchmarks NAME ...` runs the named ones, without a name all. Each module `bench_NAME.py` has a
`main()` that returns its table as text; where models or tools are missing it says which.
"""

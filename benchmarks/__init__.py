"""Speed measurements: ratios to other tools and to the bare model, measured in one run.

`python -m benchmarks NAME ...` runs the named benchmarks, or all if none is named. Each module
`bench_NAME.py` has a `main()` that returns its table as text. If models or tools are missing, it says which.
"""

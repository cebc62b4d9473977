"""Benchmarks and experiments: `python -m benchmarks NAME`."""

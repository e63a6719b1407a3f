"""The measurements, and the programs that are compared: python -m benchmarks.NAME."""

"""Benchmarks: `make bench` runs all of them, `make bench-NAME` one. Each ends with the line `NAME VALUE UNIT`."""

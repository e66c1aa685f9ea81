"""What the benchmarks of loads are made of."""

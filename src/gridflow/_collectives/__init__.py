"""Sums over all ranks on CPUs: shared memory on a host, and TLS from host to host."""

"""Devices, captured graphs, ranks, threads and seeds."""

"""Kernels: cpp (compiled), numba (where nothing was compiled) and reference (the specification)."""

"""The specification in plain Python: random numbers, event loop, server, replay. Numba uses it too."""

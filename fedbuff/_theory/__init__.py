"""The theorem: its formulas, and runs that are compared with it."""

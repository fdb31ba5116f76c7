"""Runs that are written down: configurations, data, run folders, comparisons."""

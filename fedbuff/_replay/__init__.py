"""The numbers along a schedule: the loop, its metrics, checkpoints and results."""

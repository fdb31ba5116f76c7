"""Who arrives when, on which version: schedules, and how they are resolved."""

"""How slow clients are: distributions, recorded traces, arrival logs, availability."""

"""What clients minimise, and how a client works on it."""

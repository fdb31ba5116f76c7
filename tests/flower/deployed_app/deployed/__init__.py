"""A small model whose clients are deterministic, so that a log can be replayed."""

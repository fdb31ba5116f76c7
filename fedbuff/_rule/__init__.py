"""What a server computes: strategies, the rule that each one is, and the file of a server."""

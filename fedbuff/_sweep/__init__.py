"""Many runs: arms and seeds, stored as they finish; statistics; tuning."""

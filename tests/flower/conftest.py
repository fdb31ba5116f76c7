"""These tests need flwr, which pins other packages: `make test-flower` runs them in an environment of its own."""

collect_ignore = ["deployed_app"]

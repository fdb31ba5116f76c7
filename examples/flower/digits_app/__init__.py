"""A Flower app whose server is FedBuff."""

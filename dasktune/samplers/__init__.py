"""Which configurations are tried."""

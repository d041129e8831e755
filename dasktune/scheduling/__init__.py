"""Which stage runs where."""

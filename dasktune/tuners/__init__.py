"""Which trials train how far."""

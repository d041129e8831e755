"""Getting machines."""

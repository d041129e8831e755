"""The same core under a virtual clock."""

"""The one state machine: events in, commands out."""

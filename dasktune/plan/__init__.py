"""What must be computed: merged histories, and the stages that open requests still need."""

"""The same core on real machines: states on disk, stages in processes, backends that run them."""

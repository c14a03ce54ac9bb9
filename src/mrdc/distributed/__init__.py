"""Several processes: torch.distributed for one network, Ray for planning and packing."""

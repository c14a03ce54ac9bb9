"""Several processes that train one network together, by torch.distributed."""

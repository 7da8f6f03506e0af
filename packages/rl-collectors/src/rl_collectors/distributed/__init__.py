"""Collectors whose workers run on other machines, joined by ``torch.distributed``."""

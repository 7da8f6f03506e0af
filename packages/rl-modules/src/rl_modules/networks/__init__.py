"""Networks: modules from tensors to tensors."""

"""How trained weights reach the copies of a policy that act in other processes."""

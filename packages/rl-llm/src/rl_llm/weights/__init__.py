"""How trained weights reach the engines that generate. Nothing is imported until it is used."""

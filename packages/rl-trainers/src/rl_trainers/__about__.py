__version__ = "0.2.2.dev0"

"""What runs in the sandbox's own processes: the standard library only, imported without the packages around it.

The folder above is put on the path of a bare interpreter (``python -I -S``) and this package imported as ``inside``:
therefore its files import each other relatively, and nothing else of the library.
"""

NOBODY = 65534  # by convention the user who owns nothing

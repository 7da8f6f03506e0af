"""A plugin's tests run where the plugin is installed: by its own noxfile, and in `tests/test_installed_wheels.py`."""

collect_ignore_glob = ["*/tests/*"]

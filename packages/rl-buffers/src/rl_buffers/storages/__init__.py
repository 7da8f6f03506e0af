"""Where rows are kept: one storage per file."""

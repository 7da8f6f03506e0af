"""Where episodes lie among a buffer's rows: a table kept up to date by each write."""

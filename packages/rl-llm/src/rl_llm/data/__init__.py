"""Data of language models: chats, their token and text views, templates, and the append-only token builder."""

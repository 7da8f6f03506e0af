"""Environments of language models: chats, data sets, rewards and toy tasks."""

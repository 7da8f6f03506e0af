"""What tests and examples of language models need and no download gives."""

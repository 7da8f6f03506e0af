"""One policy that acts for many clients at once: requests are answered in batches."""

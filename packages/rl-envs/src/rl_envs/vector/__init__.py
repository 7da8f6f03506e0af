"""Several environments as one: side by side in this process, in worker processes, or each at its own pace."""

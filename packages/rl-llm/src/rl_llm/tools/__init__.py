"""What a model may call: functions, code in a sandbox, and the reading of its calls. Nothing here imports torch."""

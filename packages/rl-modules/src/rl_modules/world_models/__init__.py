"""World models: recurrent state-space models, their rollout over sequences, encoders, decoders, Dreamer's actors."""

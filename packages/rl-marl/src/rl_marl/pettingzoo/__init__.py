"""PettingZoo environments, parallel and turn-based, as grouped environments of rl-core."""

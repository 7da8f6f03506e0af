"""What is made of sampled rows with other rows of their episodes: n-step returns, hindsight goals, returns to go."""

"""Two worked examples on a share of a card: `driving` and `ct`. They need torch, which the environment brings."""

"""The hub's page about cards: who holds what, live, and what administrators do about it."""

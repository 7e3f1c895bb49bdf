"""What holds for every request: how many, once only, written down, counted."""

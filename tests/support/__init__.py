"""What several tests share: a machine with simulated cards and the service on it, and programs in sessions."""

"""Checkpoints: snapshot, writer, store, state of a run."""

"""The one training loop and per-example gradients."""

"""An owner's own network in private training: what is tried before the first step, and watched during all of them."""

"""What can be measured at one example: slope and curvature of its loss, local Lipschitz constants, and their use."""

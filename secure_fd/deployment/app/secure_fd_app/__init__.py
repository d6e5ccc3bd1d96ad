"""What Flower ships to its processes: two names of the installed package."""

"""All attacks on small federations made for them."""

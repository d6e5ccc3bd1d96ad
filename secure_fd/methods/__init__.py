"""One file a method: what it shares, and what the server does with it."""

"""The secure-sum protocol: sans-IO state machines and their messages."""

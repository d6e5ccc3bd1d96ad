"""What an attacker can learn from a transcript, with controls."""

"""Audits of privacy claims: what an attacker proves, against what the software promised."""

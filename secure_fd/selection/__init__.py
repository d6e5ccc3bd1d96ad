"""Selectors: they choose the proxies that a client answers and the answers that a server keeps."""

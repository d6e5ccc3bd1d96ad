"""The ServerApp of the installed package."""

from secure_fd.deployment.server_app import app

__all__ = ["app"]
